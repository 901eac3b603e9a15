-- remove: ID. It takes the endpoint out and revokes its leases.
local s = load(arg(1))
if s then
  local leases = s.former .. s.leases
  rare().unlist(s)
  rare().take_off(s)
  unwake('s' .. s.id)
  call('HDEL', base .. 'faces', s.id)
  call('ZREM', IDS, s.id)
  call('DEL', base .. 'e:' .. s.id)
  rare().revoke(leases)
end
return answer('ok')
