-- An acquire is ordinary where it has no session, is not a repetition, and the least
-- recently used behind the domain's mark (see pick.lua) is not banned and has no
-- place for another holder then.
local id, domain, ttl = ARGV[11], ARGV[13], tonumber(ARGV[16])
local classes = ordinary and ARGV[14] == '' and call('HGET', base .. 'matched', ARGV[12])
if classes and call('EXISTS', base .. 'l:' .. id, base .. 'x:' .. id, base .. 'w:' .. id) == 0 then
  local best, use, list
  for _, class in ipairs(cmsgpack.unpack(classes)) do
    local after, mark = '-inf', domain ~= '' and call('HGET', base .. 'skip:' .. domain, class)
    if mark then
      local epoch, last, till = string.match(mark, '^(%d+) (%d+) (%d+)$')
      if epoch == (m[7] or '0') and tonumber(till) > now then after = '(' .. last end
    end
    local r = call('ZRANGEBYSCORE', base .. 'free:' .. class, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if r[1] and (not use or tonumber(r[2]) < use) then best, use, list = r[1], tonumber(r[2]), base .. 'free:' .. class end
  end
  local e = best and call('HMGET', base .. 'e:' .. best, 'slot', 'endpoint', 'egress')
  local s = e and cmsgpack.unpack(e[1])
  if s and s.n + 1 >= (s.proven and tonumber(ARGV[4]) or 1)
    and (domain == '' or tonumber(call('ZSCORE', base .. 'ban:' .. domain, s.face) or 0) <= now) then
    local token = math.max(tonumber(m[2] or 0) + 1, now)
    call('ZREM', list, best)
    call('SET', base .. 'l:' .. id, cmsgpack.pack({ id = id, token = token, of = best, inst = s.inst, holder = ARGV[15],
      domain = domain, granted = now, ttl = ttl, deadline = now + ttl, prior = s.used, claimed = true }))
    call('ZADD', base .. 'due', now + ttl, 'l' .. id)
    s.used, s.n, s.leases, s.state = tonumber(m[3] or 0) + 1, s.n + 1, s.leases .. id .. ' ', 'leased'
    call('HSET', base .. 'e:' .. best, 'slot', cmsgpack.pack(s))
    local text = string.format('%.0f', token)
    call('HSET', base .. 'meta', 'token', text, 'used', s.used, 'n:acquired', tonumber(m[6] or 0) + 1)
    return { m[1], text, 'lease', { text, ARGV[16], domain, e[2], e[3] } }
  end
end
