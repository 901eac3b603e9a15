-- drain: ID. It answers how many leases are left, or "unknown".
local s = load(arg(1))
if not s then return answer('unknown') end
s.draining = true
settle(s)
local _, former = string.gsub(s.former, ' ', '')
return answer(s.n + former)
