
conf=/etc/squid/squid.conf
users=/etc/squid/egress.users

# The user Squid runs as was fixed when it was built.
squid_user() {
	built=$(squid -v | sed -n "s/.*--with-default-user=\([A-Za-z0-9_-]*\).*/\1/p")
	for user in $built squid proxy; do
		if id "$user" >/dev/null 2>&1; then
			echo "$user"
			return
		fi
	done
	echo root
}

# Only Squid reads the password hashes.
give_users_file() {
	owner=$(squid_user)
	chown "$owner" "$users" && chmod 0400 "$users" || fail "$users could not be given to $owner"
	say "$users belongs to $owner"
}

# Distributions keep the helper that checks passwords in different places.
find_helper() {
	for helper in /usr/lib/squid /usr/lib64/squid /usr/libexec/squid /usr/lib/squid3; do
		if [ -x "$helper/basic_ncsa_auth" ]; then
			sed -i "s|^auth_param basic program [^ ]*|auth_param basic program $helper/basic_ncsa_auth|" "$conf"
			return
		fi
	done
	fail "basic_ncsa_auth is not here: install the package that has it"
}

if has squid; then
	say "squid is installed already"
else
	install squid
fi
if [ -f "$users" ]; then
	give_users_file
	find_helper
fi
parsed=$(squid -k parse -f "$conf" 2>&1) || {
	echo "$parsed"
	fail "squid does not accept $conf: see above"
}
# The drop-in is new to systemd. Enabling a unit reads it too.
if has systemctl && systemctl is-enabled -q squid; then
	systemctl daemon-reload
fi
enable_now squid restart
if has systemctl; then
	systemctl restart logrotate.timer || say "logs are rotated once a day only: there is no logrotate.timer"
fi
say "squid runs"
