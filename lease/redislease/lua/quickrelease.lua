-- A release is ordinary where the lease was used, and its endpoint, which has no
-- other holder, is to be leased again at once.
local text = ordinary and ARGV[13] == '' and call('GET', base .. 'l:' .. ARGV[11])
local l = text and cmsgpack.unpack(text)
if l and string.format('%.0f', l.token) == ARGV[12] then
  text = call('HGET', base .. 'e:' .. l.of, 'slot')
  local s = text and cmsgpack.unpack(text)
  if s and s.inst == l.inst and s.n == 1 and s.state == 'leased' and s.health == 'Healthy' and s.cool <= now
    and not s.draining and s.used > tonumber(m[5] or 0) then
    call('DEL', base .. 'l:' .. ARGV[11])
    call('ZREM', base .. 'due', 'l' .. ARGV[11])
    s.n, s.leases, s.state = 0, '', 'free'
    call('HSET', base .. 'e:' .. l.of, 'slot', cmsgpack.pack(s))
    call('ZADD', base .. 'free:' .. s.class, s.used, s.id)
    call('HINCRBY', base .. 'meta', 'n:released', 1)
    return { m[1], m[2], 'ok' }
  end
end
