-- renew: ID, token, ttl, longest lifetime. It answers "lease", or why not. The lease
-- keeps its token. The store takes the next one all the same, so that the caller sees
-- by it when a renewal was lost.
local l, why = held(arg(1), arg(2))
if not l then return answer(why) end
local ttl = math.min(tonumber(arg(3)), l.granted + tonumber(arg(4)) - now)
if ttl <= 0 then
  count('expired')
  finish(l, now)
  return answer('lifetime')
end
next_token()
l.deadline = now + ttl
keep(l)
count('renewed')
return answer('lease', granted(l))
