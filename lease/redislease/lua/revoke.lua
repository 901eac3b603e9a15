-- revoke: ID. It answers "ok" or "unknown".
local s = load(arg(1))
if not s then return answer('unknown') end
rare().revoke(s.former .. s.leases)
return answer('ok')
