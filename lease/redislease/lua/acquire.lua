-- acquire: ID, selector, domain, ttl, holder, arrival, and a session where there is
-- one. The ID is the caller's, and the same ID gets the same answer: a call whose answer
-- was lost is made again. With an arrival, which is first 0, it queues, and each later
-- call says that the waiter is still there. It answers "lease", "wait" or "none", or
-- "gone" where leave has overtaken it.
local id, text, waits = arg(1), arg(2), arg(6) ~= ''
local l, over = lease(id)
if l then return answer('lease', claim(l)) end
if over then return answer('gone') end
local queued = meta.waiting > 0 and call('HMGET', base .. 'w:' .. id, 'lane', 'arrived')
if queued and not queued[1] then queued = nil end

local r = { domain = arg(3), session = arg(7) or '', holder = arg(5), ttl = tonumber(arg(4)) }
if r.session ~= '' then r.selector = cjson.decode(text) end
local classes, slots = matched(text)
local s = pick(r, classes, slots)
if s then
  if queued then
    rare().leave_lane(id, queued[1])
    count('waited', str(math.max(now - tonumber(queued[2]), 0)))
  end
  return answer('lease', grant(s, id, r, true))
end
if not waits then
  return answer('none', standing(classes, r.domain ~= '' and r.session == '', slots), str(soonest(classes, slots)))
end
local arrived = tonumber(queued and queued[2] or arg(6))
if queued then
  wake('w' .. id, now + grace)
else
  if arrived == 0 then
    count('waits')
    arrived = now
  end
  rare().enter_lane(id, cjson.encode({ text, r.domain, r.session }), r.holder, arg(4), arrived)
end
local next_due = call('ZRANGE', DUE, 0, 0, 'WITHSCORES')
return answer('wait', str(arrived), str(math.max(next_due[2] - now, 0)))
