-- An acquire is ordinary where it has no session, is not a repetition, and the least
-- recently used behind the domain's mark (see pick.lua) is not banned and has no
-- place for another holder then.
local classes
if ordinary and matching and not ARGV[10] then
  local made, all = cmsgpack.unpack(matching)
  classes = made == classing and all
end
if classes then
  local best, prior, class, list
  for i = 1, #classes do
    local free, r = base .. 'free:' .. classes[i], nil
    if banning then
      local marked, made, last, till = cmsgpack.unpack(banning)
      if marked ~= classes[i] then
        local skip = call('HGET', base .. 'skip:' .. ARGV[6], classes[i])
        if skip then made, last, till = cmsgpack.unpack(skip) else made = nil end
      end
      if made == epoch and till > now then
        r = call('ZRANGEBYSCORE', free, '(' .. last, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
      end
    end
    r = r or call('ZRANGE', free, '0', '0', 'WITHSCORES')
    local last = tonumber(r[2])
    if last and (not prior or last < prior) then best, prior, class, list = r[1], last, classes[i], free end
  end
  local slot = best and base .. 'e:' .. best
  local ready = slot and call('HGET', slot, 'ready')
  if ready and string.sub(ready, 1, 1) == '+' then
    local face, at = struct.unpack('>I4c0', ready, 2)
    if not banning or tonumber(call('ZSCORE', base .. 'ban:' .. ARGV[6], face) or 0) <= now then
      local id, ttl = ARGV[4], tonumber(ARGV[7])
      token, used = math.max(token + 1, now), used + 1
      local given, use = string.format('%d', token), string.format('%d', used)
      if call('SET', base .. 'l:' .. id, struct.pack('>I4c0I4c0I4c0I4c0dddddI4c0I4c0', #given, given, #use, use, #best, best, #class, class,
        prior, now, ttl, now + ttl, 1, #ARGV[8], ARGV[8], #ARGV[6], ARGV[6]), 'NX') then
        call('ZREM', list, best)
        call('ZADD', base .. 'due', string.format('%d', now + ttl), 'l' .. id)
        call('HSET', slot, 'held', '+' .. use .. ' ' .. id .. ' \n' .. class)
        call('HSET', hot, 'state', struct.pack('>dddd', token, used, math.min(due, now + ttl), acquired + 1) .. string.sub(state, 33))
        return given .. ' ' .. string.sub(ready, at)
      end
    end
  end
end
