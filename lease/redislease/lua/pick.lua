-- matched returns the classes that a selector chooses, and learns attributes that
-- no selector has asked for before: then every slot is classed anew. There are at
-- most 16, and the oldest go first.
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
    enlist(s)
    settle(s)
  end
end

local function matched(selector, text)
  if text == '[]' then return call('HKEYS', base .. 'classes') end
  local cached = call('HGET', base .. 'matched', text)
  if cached then return cjson.decode(cached) end
  learn(selector)
  local chosen, all = {}, call('HGETALL', base .. 'classes')
  for i = 1, #all, 2 do
    if holds(selector, cjson.decode(all[i + 1])) then chosen[#chosen + 1] = all[i] end
  end
  if call('HLEN', base .. 'matched') >= 1000 then call('DEL', base .. 'matched') end
  call('HSET', base .. 'matched', text, #chosen > 0 and cjson.encode(chosen) or '[]')
  return chosen
end

-- The free endpoints that a domain bans come to be the least recently used, and
-- each acquire for it would look at them all. So skip:DOMAIN has a mark for each
-- class: up to that use, all free ones are banned until then. It counts as long as
-- the class is of the same epoch.
local function mark_of(class, domain)
  local now_of = tonumber(call('HGET', base .. 'class:' .. class, 'epoch') or 0)
  local m = { epoch = now_of, use = '-inf', till = math.huge }
  local text = call('HGET', base .. 'skip:' .. domain, class)
  if text then
    local epoch, use, till = string.match(text, '^(%d+) (%d+) (%d+)$')
    if tonumber(epoch) == now_of and tonumber(till) > now then m.use, m.till = use, tonumber(till) end
  end
  return m
end

local function set_mark(class, domain, m)
  local key = base .. 'class:' .. class
  call('HSET', base .. 'skip:' .. domain, class, str(m.epoch) .. ' ' .. m.use .. ' ' .. str(m.till))
  if tonumber(m.use) > tonumber(call('HGET', key, 'mark') or 0) then call('HSET', key, 'mark', m.use) end
end

-- unbanned is the first of the class that the domain does not ban, and its use.
local function unbanned(class, domain)
  local m, skipped = mark_of(class, domain), 0
  repeat
    local after = m.use == '-inf' and m.use or '(' .. m.use
    local r, ids = call('ZRANGEBYSCORE', base .. 'free:' .. class, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 100), {}
    for i = 1, #r, 2 do ids[#ids + 1] = r[i] end
    local tills = #ids == 0 and {} or
      call('ZMSCORE', base .. 'ban:' .. domain, unpack(call('HMGET', base .. 'faces', unpack(ids))))
    for i, id in ipairs(ids) do
      local till = tonumber(tills[i] or 0)
      if till <= now then
        if skipped >= 32 then set_mark(class, domain, m) end
        return id, tonumber(r[2 * i])
      end
      m.use, m.till, skipped = r[2 * i], math.min(m.till, till), skipped + 1
    end
  until #ids == 0
  if skipped >= 32 then set_mark(class, domain, m) end
end

-- first returns the least recently used free endpoint of the class that the domain,
-- if it has bans, does not ban, and its use.
local function first(class, domain, bans)
  if bans then return unbanned(class, domain) end
  local r = call('ZRANGE', base .. 'free:' .. class, 0, 0, 'WITHSCORES')
  return r[1], tonumber(r[2])
end

-- pick returns the free slot that the request is to have, or nil.
local function pick(r, classes)
  local home = bound(r)
  if home then return home.state == 'free' and home or nil end
  local bans = r.domain ~= '' and call('EXISTS', base .. 'ban:' .. r.domain) == 1
  local best, use
  for _, class in ipairs(classes) do
    local id, used = first(class, r.domain, bans)
    if id and (not use or used < use) then best, use = id, used end
  end
  return best and load(best)
end

-- soonest is how long it is until one of the classes' endpoints may become free by
-- itself: the first of the next few that are due, or zero.
local function soonest(classes)
  if #classes == 0 then return 0 end
  local among = {}
  for _, class in ipairs(classes) do among[class] = true end
  local next_due = call('ZRANGEBYSCORE', DUE, now, '+inf', 'WITHSCORES', 'LIMIT', 0, 16)
  for i = 1, #next_due, 2 do
    local kind, id = string.sub(next_due[i], 1, 1), string.sub(next_due[i], 2)
    if kind == 'b' then
      local length, rest = string.match(id, '^(%d+):(.*)$')
      id = behind(string.sub(rest, 1, length))[1]
    elseif kind == 'l' then
      id = call('HGET', base .. 'l:' .. id, 'of')
    elseif kind ~= 's' then
      id = nil
    end
    local v = id and call('HMGET', base .. 'e:' .. id, 'class', 'health')
    if v and among[v[1]] and v[2] == 'Healthy' then return next_due[i + 1] - now end
  end
  return 0
end

-- standing tells where the endpoints stand for a request that found nothing: total,
-- not selected, draining, unknown, unhealthy, leased, cooling, cooling for the
-- domain, free.
local function standing(classes, nothing_for_domain)
  local c = { total = 0, draining = 0, unknown = 0, unhealthy = 0, cooling = 0, free = 0 }
  for _, class in ipairs(classes) do
    local of = pairs_of(call('HGETALL', base .. 'class:' .. class))
    for name in pairs(c) do c[name] = c[name] + tonumber(of[name] or 0) end
    c.free = c.free + call('ZCARD', base .. 'free:' .. class)
  end
  local all = call('ZCARD', IDS)
  local leased = c.total - c.draining - c.unknown - c.unhealthy - c.cooling - c.free
  local banned_free = nothing_for_domain and c.free or 0
  return { all, all - c.total, c.draining, c.unknown, c.unhealthy, leased, c.cooling, banned_free, c.free - banned_free }
end
