-- A release is ordinary where the lease was used, and its endpoint, which has no
-- other holder, is to be leased again at once.
local key = base .. 'l:' .. ARGV[4]
local packed = ordinary and not ARGV[6] and call('GET', key)
if packed and #packed > 32 then -- not what is left of one
  local given, use, of, class = struct.unpack('>I4c0I4c0I4c0I4c0', packed)
  if given == ARGV[5] and tonumber(use) > mark then
    local slot = base .. 'e:' .. of
    if call('HGET', slot, 'held') == '+' .. use .. ' ' .. ARGV[4] .. ' \n' .. class then
      call('DEL', key)
      call('ZREM', base .. 'due', 'l' .. ARGV[4])
      call('HSET', slot, 'held', '+' .. use .. ' \n' .. class)
      call('ZADD', base .. 'free:' .. class, use, of)
      call('INCR', base .. 'released')
      return string.format('%d', token)
    end
  end
end
