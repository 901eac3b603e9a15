-- A slot is an endpoint in the store: the hash e:ID. What changes often is packed in
-- its field slot. Its state says where it is counted: draining, unhealthy, unknown,
-- leased, cooling or free. Free ones are listed by use in the sorted set free:CLASS;
-- how many stand in each other state but leased is counted in the hash class:CLASS,
-- with the total. A class is what the attributes are that selectors have asked for;
-- the hash classes names all.
local IDS = base .. 'ids'

-- load returns the slot, or nil, with endpoint and egress address as they are
-- stored. Of it, inst numbers what has stood behind the ID; n is how many hold it,
-- leases their IDs; former those of leases on what stood there before; due when it
-- is to be looked at.
local function load(id)
  local e = call('HMGET', base .. 'e:' .. id, 'slot', 'endpoint', 'egress')
  if not e[1] then return nil end
  local s = cmsgpack.unpack(e[1])
  return s, e[2], e[3]
end

local function save(s) call('HSET', base .. 'e:' .. s.id, 'slot', cmsgpack.pack(s)) end

local function usable(s) return not s.draining and s.health == 'Healthy' and s.cool <= now end

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
local function unmark() meta.epoch, meta.mark = str(call('HINCRBY', META, 'epoch', 1)), 0 end

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
    call('ZADD', base .. 'free:' .. s.class, s.used, s.id)
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
