-- matched returns the classes that a selector chooses, or no classes and the slots,
-- where it asks for an attribute that is not classed by.
local function matched(text)
  local kept = call('HGET', HOT, text)
  if kept then
    local made, classes = cmsgpack.unpack(kept)
    if made == meta.classing then return classes end
  end
  return rare().match(text)
end

-- The free endpoints that a domain bans come to be the least recently used, and
-- each acquire for it would look at them all. So skip:DOMAIN has a mark for each
-- class: up to that use, all free ones are banned until then. It counts as long as
-- nothing has come in below the highest of all marks: then a new epoch begins.
local function mark_of(class, domain)
  local text = call('HGET', base .. 'skip:' .. domain, class)
  if text then
    local epoch, use, till = cmsgpack.unpack(text)
    if epoch == meta.epoch and till > now then return { use = use, till = till } end
  end
  return { use = '-inf', till = math.huge }
end

local function set_mark(class, domain, m)
  call('HSET', base .. 'skip:' .. domain, class, cmsgpack.pack(meta.epoch, m.use, m.till))
  call('HSET', HOT, 'd:' .. domain, cmsgpack.pack(class, meta.epoch, m.use, m.till))
  meta.mark = math.max(meta.mark, tonumber(m.use))
end

-- unbanned is the first of the class that the domain does not ban, and its use.
local function unbanned(class, domain)
  local m, skipped, page = mark_of(class, domain), 0, 4
  repeat
    local after = m.use == '-inf' and m.use or '(' .. m.use
    local r, ids = call('ZRANGEBYSCORE', base .. 'free:' .. class, after, '+inf', 'WITHSCORES', 'LIMIT', 0, page), {}
    for i = 1, #r, 2 do ids[#ids + 1] = r[i] end
    local tills = #ids == 0 and {} or
      call('ZMSCORE', base .. 'ban:' .. domain, unpack(call('HMGET', base .. 'faces', unpack(ids))))
    for i, id in ipairs(ids) do
      local till = tonumber(tills[i] or 0)
      if till <= now then
        if skipped > 0 then set_mark(class, domain, m) end
        return id, tonumber(r[2 * i])
      end
      m.use, m.till, skipped = r[2 * i], math.min(m.till, till), skipped + 1
    end
    page = 100
  until #ids == 0
  if skipped > 0 then set_mark(class, domain, m) end
end

-- least returns the least recently used of what the function finds in the classes.
local function least(classes, find, domain)
  local best, use
  for _, class in ipairs(classes) do
    local id, used = find(class, domain)
    if id and (not use or used < use) then best, use = id, used end
  end
  return best
end

local function first(class)
  local r = call('ZRANGE', base .. 'free:' .. class, 0, 0, 'WITHSCORES')
  return r[1], tonumber(r[2])
end

-- unclassed is the least recently used of those slots that is free and not banned.
local function unclassed(r, slots)
  local best
  for _, s in ipairs(slots) do
    if s.state == 'free' and not rare().banned(s.face, r.domain) and (not best or s.used < best.used) then best = s end
  end
  if best then return load(best.id) end
end

-- pick returns the free slot that the request is to have, as load does, or nil. Only
-- where the domain bans the first does it look for bans.
local function pick(r, classes, slots)
  if r.session ~= '' then
    local home = rare().bound(r)
    if home then
      if home.state == 'free' then return load(home.id) end
      return nil
    end
  end
  if slots then return unclassed(r, slots) end
  local best = least(classes, first)
  if not best then return nil end
  local s = load(best)
  local till = r.domain ~= '' and call('ZSCORE', base .. 'ban:' .. r.domain, s.face)
  if not till or tonumber(till) <= now then return s end
  best = least(classes, unbanned, r.domain)
  if best then return load(best) end
end

-- soonest is how long it is until an endpoint of the classes, or one of the slots, may
-- become free by itself: the first of the next few that are due, or zero.
local function soonest(classes, slots)
  if #classes == 0 and not slots then return 0 end
  local among = {}
  for _, class in ipairs(classes) do among[class] = true end
  local single = {}
  for _, s in ipairs(slots or {}) do single[s.id] = true end
  local next_due = call('ZRANGEBYSCORE', DUE, now, '+inf', 'WITHSCORES', 'LIMIT', 0, 16)
  for i = 1, #next_due, 2 do
    local kind, id = string.sub(next_due[i], 1, 1), string.sub(next_due[i], 2)
    if kind == 'b' then
      local length, rest = string.match(id, '^(%d+):(.*)$')
      id = rare().behind(string.sub(rest, 1, length))[1]
    elseif kind == 'l' then
      local l = lease(id)
      id = l and l.of
    elseif kind ~= 's' then
      id = nil
    end
    local s = id and load(id)
    if s and (among[s.class] or single[s.id]) and s.health == 'Healthy' then return next_due[i + 1] - now end
  end
  return 0
end

-- standing tells where the endpoints stand for a request that found nothing: total,
-- not selected, draining, unknown, unhealthy, leased, cooling, cooling for the
-- domain, free.
local function standing(classes, nothing_for_domain, slots)
  local c = { total = 0, draining = 0, unknown = 0, unhealthy = 0, cooling = 0, free = 0 }
  for _, class in ipairs(classes) do
    local of = pairs_of(call('HGETALL', base .. 'class:' .. class))
    for name in pairs(c) do c[name] = c[name] + tonumber(of[name] or 0) end
    c.free = c.free + call('ZCARD', base .. 'free:' .. class)
  end
  for _, s in ipairs(slots or {}) do
    c.total = c.total + 1
    if c[s.state] then c[s.state] = c[s.state] + 1 end
  end
  local all = call('ZCARD', IDS)
  local leased = c.total - c.draining - c.unknown - c.unhealthy - c.cooling - c.free
  local banned_free = nothing_for_domain and c.free or 0
  return { all, all - c.total, c.draining, c.unknown, c.unhealthy, leased, c.cooling, banned_free, c.free - banned_free }
end
