-- verdict: ID, generation, health, verdict, egress address or "", its face or "".
-- It answers how many share the address, or "unknown".
local s = load(arg(1))
if not s then return answer('unknown') end
if call('HGET', base .. 'e:' .. s.id, 'gen') ~= arg(2) then return answer(0) end
s.health = arg(3)
call('HSET', base .. 'e:' .. s.id, 'verdict', arg(4))
if arg(5) ~= '' then s.egress = arg(5) end
local sharing = rare().wear(s, arg(6))
settle(s)
return answer(sharing)
