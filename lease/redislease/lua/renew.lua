-- renew: ID, token, ttl, longest lifetime. It answers "lease", or why not.
local l, why = held(arg(1), arg(2))
if not l then return answer(why) end
local ttl = math.min(tonumber(arg(3)), l.granted + tonumber(arg(4)) - now)
if ttl <= 0 then
  count('expired')
  finish(l, now)
  return answer('lifetime')
end
l.deadline = now + ttl
keep(l)
count('renewed')
return answer('lease', granted(l))
