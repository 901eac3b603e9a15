-- renew: ID, token, ttl, longest lifetime. It answers "lease", or why not.
local l, why = held(arg(1), arg(2))
if not l then return answer(why) end
local ttl = math.min(tonumber(arg(3)), l.granted + tonumber(arg(4)) - now)
if ttl <= 0 then
  count('expired')
  finish(l, now)
  return answer('lifetime')
end
call('HSET', base .. 'l:' .. l.id, 'deadline', str(now + ttl))
wake('l' .. l.id, now + ttl)
count('renewed')
return answer('lease', { l.token, str(ttl), l.domain, l.endpoint, l.egress })
