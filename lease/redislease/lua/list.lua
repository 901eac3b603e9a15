-- list: the ID after which to go on, or "", and how many at most. It answers the
-- time and, for each endpoint, what there is to know of it.
local ids = call('ZRANGEBYLEX', IDS, arg(1) == '' and '-' or '(' .. arg(1), '+', 'LIMIT', 0, arg(2))
local all = {}
for _, id in ipairs(ids) do
  local s = load(id)
  local leases, bans = {}, {}
  for lid in string.gmatch(s.leases, '%S+') do
    local l = lease(lid)
    leases[#leases + 1] = { lid, l.holder, l.domain, str(l.deadline) }
  end
  for _, domain in ipairs(call('SMEMBERS', base .. 'banned:' .. s.face)) do
    bans[#bans + 1] = { domain, call('ZSCORE', base .. 'ban:' .. domain, s.face) }
  end
  all[#all + 1] = { id, s.egress .. '\n' .. s.endpoint, call('HGET', base .. 'e:' .. id, 'verdict'),
    s.draining and '1' or '0', s.proven and '1' or '0', str(s.cool), leases, bans }
end
return answer(str(now), all)
