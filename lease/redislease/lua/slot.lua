-- A slot is an endpoint in the store: the hash e:ID. Its state says where it is
-- counted: draining, unhealthy, unknown, leased, cooling or free. Free ones are listed
-- by use in the sorted set free:CLASS; how many stand in each other state but leased is
-- counted in the hash class:CLASS, with the total. A class is what the attributes are
-- that selectors have asked for; the hash classes names all.
--
-- What each lease changes is in the field held: a sign, the last use, the leases and,
-- in a line of its own, the class. The sign is + where the slot is free with no holder
-- and the next one has it alone, or is leased by one and free without it. The field
-- ready has the same sign, the face with its length, and the egress address and the
-- endpoint as holders get them, in lines. All else that leases depend on is packed in
-- the field slot; what its state says of free and leased counts only without the +.
local IDS = base .. 'ids'

-- load returns the slot, or nil. Of it, inst numbers what has stood behind the ID; n is
-- how many hold it, leases their IDs; former those of leases on what stood there
-- before; due when it is to be looked at; endpoint and egress what is stored of those.
local function load(id)
  local e = call('HMGET', base .. 'e:' .. id, 'slot', 'held', 'ready')
  if not e[1] then return nil end
  local s, sign, used, at = { id = id }, nil, nil, nil
  s.state, s.inst, s.cool, s.proven, s.faults, s.faulted, s.draining, s.health, s.former, s.due = cmsgpack.unpack(e[1])
  sign, used, s.leases, s.class = string.match(e[2], '^(.)(%d+) (.-)\n(.*)$')
  s.face, at = struct.unpack('>I4c0', e[3], 2)
  s.egress, s.endpoint = string.match(string.sub(e[3], at), '^(.-)\n(.*)$')
  s.used, s.n = tonumber(used), select(2, string.gsub(s.leases, ' ', ''))
  if sign == '+' then s.state = s.n == 0 and 'free' or 'leased' end
  return s
end

local function usable(s) return not s.draining and s.health == 'Healthy' and s.cool <= now end

local function save(s)
  local sign = '-'
  if s.n == 0 and s.state == 'free' and (max_holders == 1 or not s.proven) or s.n == 1 and s.state == 'leased' and usable(s) then
    sign = '+'
  end
  call('HSET', base .. 'e:' .. s.id, 'held', sign .. str(s.used) .. ' ' .. s.leases .. '\n' .. s.class,
    'ready', sign .. struct.pack('>I4c0', #s.face, s.face) .. s.egress .. '\n' .. s.endpoint,
    'slot', cmsgpack.pack(s.state, s.inst, s.cool, s.proven, s.faults, s.faulted, s.draining, s.health, s.former, s.due))
end

local function state_of(s)
  if s.draining then return 'draining' end
  if s.health ~= 'Healthy' then return s.health == 'Unhealthy' and 'unhealthy' or 'unknown' end
  if s.n >= (s.proven and max_holders or 1) then return 'leased' end
  return s.cool > now and 'cooling' or 'free'
end

local function add(s, state, by)
  if state ~= 'free' and state ~= 'leased' and state ~= '' then
    call('HINCRBY', base .. 'class:' .. s.class, state, by)
  end
end

-- without takes a word out of a list of words that each end with a space.
local function without(words, word)
  if words == word .. ' ' then return '' end
  local from, to = string.find(words, word .. ' ', 1, true)
  if not from then return words end
  return string.sub(words, 1, from - 1) .. string.sub(words, to + 1)
end

-- unmark has all domains look at free endpoints from the first on; see pick.lua.
local function unmark() meta.epoch, meta.mark = meta.epoch + 1, 0 end

local rare -- what most calls do not need, defined when first asked for

-- settle puts a slot where it belongs after any change of it, saves it, and offers
-- it to those who wait if it is free.
local function settle(s)
  local before = s.state
  s.state = state_of(s)
  if s.state ~= before then
    add(s, before, -1)
    add(s, s.state, 1)
  end
  if s.state == 'free' then
    call('ZADD', base .. 'free:' .. s.class, str(s.used), s.id)
    if before ~= 'free' and s.used <= meta.mark then unmark() end
  elseif before == 'free' then
    call('ZREM', base .. 'free:' .. s.class, s.id)
  end
  if s.cool > now and s.due ~= s.cool then
    s.due = s.cool
    wake('s' .. s.id, s.cool)
  end
  save(s)
  if s.state == 'free' and meta.waiting > 0 then rare().offer(s) end
end
