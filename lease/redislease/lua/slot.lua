-- A slot is an endpoint in the store: the hash e:ID. Its state says where it is
-- counted: draining, unhealthy, unknown, leased, cooling or free. Free ones are
-- listed by use in the sorted set free:CLASS; how many stand in each other state
-- but leased is counted in the hash class:CLASS, with the total. A class is what
-- the attributes are that selectors have asked for; the hash classes names all.
local FIELDS = { 'gen', 'class', 'inst', 'used', 'cool', 'proven', 'faults', 'faulted', 'draining',
  'health', 'state', 'n', 'leases', 'former', 'face', 'attributes', 'due' }
local IDS = base .. 'ids'

-- load returns the slot, or nil. inst numbers what has stood behind the ID, n is
-- how many hold it, leases their IDs, former those of leases on what stood there
-- before, due when it is to be looked at.
local function load(id)
  local v = call('HMGET', base .. 'e:' .. id, unpack(FIELDS))
  if not v[1] then return nil end
  local s = { id = id }
  for i, name in ipairs(FIELDS) do s[name] = v[i] end
  for _, name in ipairs({ 'used', 'cool', 'faults', 'faulted', 'n', 'due' }) do s[name] = tonumber(s[name]) end
  return s
end

local function save(s)
  call('HSET', base .. 'e:' .. s.id, 'class', s.class, 'used', str(s.used), 'cool', str(s.cool),
    'proven', s.proven, 'faults', s.faults, 'faulted', str(s.faulted), 'draining', s.draining,
    'health', s.health, 'state', s.state, 'n', s.n, 'leases', s.leases, 'former', s.former,
    'face', s.face, 'due', str(s.due))
end

local function capacity(s) return s.proven == '1' and max_holders or 1 end

local function usable(s) return s.draining == '0' and s.health == 'Healthy' and s.cool <= now end

local function state_of(s)
  if s.draining == '1' then return 'draining' end
  if s.health ~= 'Healthy' then return s.health == 'Unhealthy' and 'unhealthy' or 'unknown' end
  if s.n >= capacity(s) then return 'leased' end
  return s.cool > now and 'cooling' or 'free'
end

local function add(s, state, by)
  if state ~= 'free' and state ~= 'leased' and state ~= '' then
    call('HINCRBY', base .. 'class:' .. s.class, state, by)
  end
end

-- without takes a word out of a list of words that each end with a space.
local function without(words, word)
  local from, to = string.find(words, word .. ' ', 1, true)
  if not from then return words end
  return string.sub(words, 1, from - 1) .. string.sub(words, to + 1)
end

-- unmark has all domains look at the free endpoints of a class from the first on;
-- see pick.lua. It is for what comes in below the highest mark.
local function unmark(class) call('HINCRBY', base .. 'class:' .. class, 'epoch', 1) end

local function list_free(s, anew)
  call('ZADD', base .. 'free:' .. s.class, s.used, s.id)
  if anew and s.used <= tonumber(call('HGET', base .. 'class:' .. s.class, 'mark') or 0) then unmark(s.class) end
end

local offer -- in queue.lua

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
    list_free(s, before ~= 'free')
  elseif before == 'free' then
    call('ZREM', base .. 'free:' .. s.class, s.id)
  end
  if s.cool > now and s.due ~= s.cool then
    s.due = s.cool
    wake('s' .. s.id, s.cool)
  end
  save(s)
  if s.state == 'free' then offer(s) end
end

-- unlist takes a slot out of all lists and counts of its class. A class without
-- members is forgotten.
local function unlist(s)
  add(s, s.state, -1)
  if s.state == 'free' then call('ZREM', base .. 'free:' .. s.class, s.id) end
  s.state = ''
  if call('HINCRBY', base .. 'class:' .. s.class, 'total', -1) == 0 then
    call('DEL', base .. 'class:' .. s.class)
    call('HDEL', base .. 'classes', s.class)
    call('DEL', base .. 'matched')
  end
end

-- class_of is the class of the attributes: the JSON of a list of key and value, in
-- the order in which the keys were learned.
local indexed
local function class_of(attributes)
  indexed = indexed or call('LRANGE', base .. 'keys', 0, -1)
  if #indexed == 0 then return '' end
  local all, mine = cjson.decode(attributes), {}
  for _, key in ipairs(indexed) do
    if all[key] then mine[#mine + 1] = { key, all[key] } end
  end
  return #mine > 0 and cjson.encode(mine) or ''
end

-- enlist counts a slot in its class. Settling lists it.
local function enlist(s)
  s.class, s.state = class_of(s.attributes), ''
  if call('HINCRBY', base .. 'class:' .. s.class, 'total', 1) == 1 then
    local attributes = {}
    for _, a in ipairs(s.class ~= '' and cjson.decode(s.class) or {}) do attributes[a[1]] = a[2] end
    call('HSET', base .. 'classes', s.class, cjson.encode(attributes))
    call('DEL', base .. 'matched')
  end
end

-- holds tells whether attributes satisfy a selector, as lease.Selector does.
local function holds(selector, attributes)
  for _, r in ipairs(selector) do
    local value, among = attributes[r.key], false
    for _, v in ipairs(r.values or {}) do among = among or v == value end
    local ok
    if r.operator == 'In' then ok = value ~= nil and among
    elseif r.operator == 'NotIn' then ok = value == nil or not among
    elseif r.operator == 'Exists' then ok = value ~= nil
    else ok = value == nil end
    if not ok then return false end
  end
  return true
end

local function attributes_of(s)
  s.decoded = s.decoded or cjson.decode(s.attributes)
  return s.decoded
end
