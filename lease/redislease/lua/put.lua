-- put: ID, endpoint, generation, URL, attributes, egress address, the face of that
-- address or "". What has another generation or URL is new: nothing is known of it,
-- and the leases on the former go on. It answers how many share its address.
local id = arg(1)
local key, s = base .. 'e:' .. id, load(arg(1))
local same = s and s.gen == arg(3) and call('HGET', key, 'url') == arg(4)
if same then
  if s.attributes ~= arg(5) then
    unlist(s)
    s.attributes, s.decoded = arg(5), nil
    enlist(s)
  end
  call('HSET', key, 'endpoint', arg(2), 'attributes', arg(5))
  if arg(6) ~= '' then call('HSET', key, 'egress', arg(6)) end
  local sharing = wear(s, arg(7))
  settle(s)
  return answer(sharing)
end

local next_slot = { id = id, gen = arg(3), inst = str(call('HINCRBY', META, 'inst', 1)), used = next_use(),
  cool = meta.quarantine, proven = '0', faults = 0, faulted = 0, draining = s and s.draining or '0', health = 'Unknown',
  n = 0, leases = '', former = s and s.former .. s.leases or '', face = '', attributes = arg(5), due = 0 }
if s then
  unlist(s)
  take_off(s)
  unwake('s' .. id)
end
put_on(next_slot, '=' .. next_slot.inst .. '=' .. id)
local sharing = wear(next_slot, arg(7))
enlist(next_slot)
call('DEL', key)
call('HSET', key, 'gen', arg(3), 'inst', next_slot.inst, 'endpoint', arg(2), 'url', arg(4), 'attributes', arg(5),
  'egress', arg(6), 'verdict', '{}')
call('ZADD', IDS, 0, id)
settle(next_slot)
return answer(sharing)
