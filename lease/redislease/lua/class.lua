-- Classes, and the selectors that choose among them.

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
local function enlist(s, attributes)
  s.class, s.state = class_of(attributes), ''
  if call('HINCRBY', base .. 'class:' .. s.class, 'total', 1) == 1 then
    local of = {}
    for _, a in ipairs(s.class ~= '' and cjson.decode(s.class) or {}) do of[a[1]] = a[2] end
    call('HSET', base .. 'classes', s.class, cjson.encode(of))
    call('DEL', base .. 'matched')
  end
end

local function attributes_of(s) return call('HGET', base .. 'e:' .. s.id, 'attributes') end

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

-- learn adds attributes that no selector has asked for before: then every slot is
-- classed anew. There are at most 16, and the oldest go first.
local function learn(selector)
  local news = false
  indexed = call('LRANGE', base .. 'keys', 0, -1)
  for _, r in ipairs(selector) do
    local has = false
    for _, key in ipairs(indexed) do has = has or key == r.key end
    if not has then
      news = true
      indexed[#indexed + 1] = r.key
    end
  end
  if not news then return end
  call('DEL', base .. 'keys')
  call('RPUSH', base .. 'keys', unpack(indexed))
  call('LTRIM', base .. 'keys', -math.max(16, #selector), -1)
  indexed = nil
  for _, id in ipairs(call('ZRANGE', IDS, 0, -1)) do
    local s = load(id)
    unlist(s)
    enlist(s, attributes_of(s))
    settle(s)
  end
end

-- match returns the classes that a selector chooses, and keeps them.
local function match(text)
  local selector = cjson.decode(text)
  learn(selector)
  local chosen, all = {}, call('HGETALL', base .. 'classes')
  for i = 1, #all, 2 do
    if holds(selector, cjson.decode(all[i + 1])) then chosen[#chosen + 1] = all[i] end
  end
  if call('HLEN', base .. 'matched') >= 1000 then call('DEL', base .. 'matched') end
  call('HSET', base .. 'matched', text, cmsgpack.pack(chosen))
  return chosen
end
