-- Classes, and the selectors that choose among them. An attribute by which there would
-- be too many classes is wide: with:KEY=VALUE has the endpoints of each of its values.
local most_classes = 256
local wide -- the keys of those, once read

local function wide_keys()
  wide = wide or call('SMEMBERS', base .. 'wide')
  return wide
end

-- each_wide has a slot taken into the sets of its wide attributes, or out of them.
local function each_wide(command, s, attributes)
  if #wide_keys() == 0 then return end
  local all = cjson.decode(attributes)
  for _, key in ipairs(wide_keys()) do
    if all[key] then call(command, base .. 'with:' .. key .. '=' .. all[key], s.id) end
  end
end

local function attributes_of(s) return call('HGET', base .. 'e:' .. s.id, 'attributes') end

-- unlist takes a slot out of all lists and counts of its class. A class without
-- members is forgotten.
local function unlist(s)
  add(s, s.state, -1)
  each_wide('SREM', s, attributes_of(s))
  if s.state == 'free' then call('ZREM', base .. 'free:' .. s.class, s.id) end
  s.state = ''
  if call('HINCRBY', base .. 'class:' .. s.class, 'total', -1) == 0 then
    call('DEL', base .. 'class:' .. s.class)
    call('HDEL', base .. 'classes', s.class)
    meta.classing = meta.classing + 1
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
  each_wide('SADD', s, attributes)
  if call('HINCRBY', base .. 'class:' .. s.class, 'total', 1) == 1 then
    local of = {}
    for _, a in ipairs(s.class ~= '' and cjson.decode(s.class) or {}) do of[a[1]] = a[2] end
    call('HSET', base .. 'classes', s.class, cjson.encode(of))
    meta.classing = meta.classing + 1
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

-- reclass has every slot classed anew, and every selector matched anew.
local function reclass()
  indexed, wide = nil, nil
  meta.classing = meta.classing + 1
  for _, id in ipairs(call('ZRANGE', IDS, 0, -1)) do
    local s = load(id)
    unlist(s)
    enlist(s, attributes_of(s))
    settle(s)
  end
end

-- widest is the attribute of the most values among the classes.
local function widest()
  local values, n, best = {}, {}, nil
  local all = call('HGETALL', base .. 'classes')
  for i = 2, #all, 2 do
    for key, value in pairs(cjson.decode(all[i])) do
      values[key] = values[key] or {}
      if not values[key][value] then values[key][value], n[key] = true, (n[key] or 0) + 1 end
    end
  end
  for key in pairs(n) do
    if not best or n[key] > n[best] or n[key] == n[best] and key < best then best = key end
  end
  return best
end

-- widen makes attributes wide while there are too many classes.
local function widen()
  while call('HLEN', base .. 'classes') > most_classes do
    local key, keys = widest(), call('LRANGE', base .. 'keys', 0, -1)
    call('SADD', base .. 'wide', key)
    call('DEL', base .. 'keys')
    for _, k in ipairs(keys) do
      if k ~= key then call('RPUSH', base .. 'keys', k) end
    end
    reclass()
  end
end

local function is_wide(key)
  for _, k in ipairs(wide_keys()) do
    if k == key then return true end
  end
  return false
end

-- learn adds attributes that no selector has asked for before: then every slot is
-- classed anew. There are at most 16, and the oldest go first.
local function learn(selector)
  local news = false
  indexed = call('LRANGE', base .. 'keys', 0, -1)
  for _, r in ipairs(selector) do
    local has = is_wide(r.key)
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
  reclass()
  widen()
end

-- candidates are the IDs of the slots that can satisfy a selector which asks for a
-- wide attribute, or nil where it asks for none. Where it names no values of one,
-- that is all.
local function candidates(selector)
  local some
  for _, r in ipairs(selector) do
    if is_wide(r.key) then
      some = some or {}
      if r.operator == 'In' then
        local ids, seen = {}, {}
        for _, value in ipairs(r.values) do
          if not seen[value] then
            for _, id in ipairs(call('SMEMBERS', base .. 'with:' .. r.key .. '=' .. value)) do ids[#ids + 1] = id end
          end
          seen[value] = true
        end
        return ids
      end
    end
  end
  return some and call('ZRANGE', IDS, 0, -1)
end

local function forget_selectors()
  for _, text in ipairs(call('HKEYS', HOT)) do
    if string.sub(text, 1, 1) == '[' then call('HDEL', HOT, text) end
  end
  meta.selectors = 0
end

-- match returns the classes that a selector chooses, and keeps them; or no classes
-- and the slots, where it asks for a wide attribute.
local function match(text)
  local selector = cjson.decode(text)
  learn(selector)
  local chosen, ids = {}, candidates(selector)
  for _, id in ipairs(ids or {}) do
    local s = load(id)
    if holds(selector, cjson.decode(attributes_of(s))) then chosen[#chosen + 1] = s end
  end
  if ids then return {}, chosen end
  local all = call('HGETALL', base .. 'classes')
  for i = 1, #all, 2 do
    if holds(selector, cjson.decode(all[i + 1])) then chosen[#chosen + 1] = all[i] end
  end
  if meta.selectors >= 1000 then forget_selectors() end
  meta.selectors = meta.selectors + 1
  call('HSET', HOT, text, cmsgpack.pack(meta.classing, chosen))
  return chosen
end
