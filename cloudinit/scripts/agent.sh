
if has qemu-ga; then
	say "the agent is installed already"
else
	install qemu-guest-agent
fi
enable_now qemu-guest-agent start
say "the agent runs"
