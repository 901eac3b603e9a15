-- put: ID, endpoint, generation, URL, attributes, egress address, the face of that
-- address or "". What has another generation or URL is new: nothing is known of it,
-- and the leases on the former go on. It answers how many share its address.
local r, id = rare(), arg(1)
local key, s = base .. 'e:' .. id, load(id)
local was = call('HMGET', key, 'gen', 'url', 'attributes')
if s and was[1] == arg(3) and was[2] == arg(4) then
  if was[3] ~= arg(5) then
    r.unlist(s)
    r.enlist(s, arg(5))
  end
  call('HSET', key, 'attributes', arg(5))
  s.endpoint = arg(2)
  if arg(6) ~= '' then s.egress = arg(6) end
  local sharing = r.wear(s, arg(7))
  settle(s)
  r.widen()
  return answer(sharing)
end

local n = { id = id, inst = call('HINCRBY', META, 'inst', 1), used = next_use(), cool = meta.quarantine, proven = false,
  faults = 0, faulted = 0, draining = s and s.draining or false, health = 'Unknown', n = 0, leases = '',
  former = s and s.former .. s.leases or '', face = '', due = 0, endpoint = arg(2), egress = arg(6) }
if s then
  for lid in string.gmatch(s.leases, '%S+') do
    local l = lease(lid)
    l.former = { gen = was[1], endpoint = s.endpoint, egress = s.egress }
    if s.face ~= r.own_face(s) then l.former.face = s.face end -- the address may have others behind it
    keep(l)
  end
  r.unlist(s)
  unwake('s' .. id)
  r.take_off(s)
end
r.put_on(n, r.own_face(n))
local sharing = r.wear(n, arg(7))
r.enlist(n, arg(5))
call('DEL', key)
call('HSET', key, 'gen', arg(3), 'url', arg(4), 'attributes', arg(5), 'verdict', '{}')
call('ZADD', IDS, 0, id)
settle(n)
r.widen()
return answer(sharing)
