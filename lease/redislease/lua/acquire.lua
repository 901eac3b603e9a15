-- acquire: ID, selector, domain, session, holder, ttl, "wait" or "", arrival or 0.
-- The ID is the caller's, and the same ID gets the same answer: a call whose answer
-- was lost is made again. With "wait" it queues, and each later call says that the
-- waiter is still there. It answers "lease", "wait" or "none", or "gone" where leave
-- has overtaken it.
local id, text, waits = arg(1), arg(2), arg(7) == 'wait'
local l = lease(id)
if l then return answer('lease', claim(l)) end
if call('EXISTS', base .. 'x:' .. id) == 1 then return answer('gone') end

local r = { selector = cjson.decode(text), domain = arg(3), session = arg(4), holder = arg(5), ttl = tonumber(arg(6)) }
local lane = cjson.encode({ text, arg(3), arg(4) })
local queued = call('HMGET', base .. 'w:' .. id, 'lane', 'arrived')
local classes = matched(r.selector, text)
local s = pick(r, classes)
if s then
  if queued[1] then
    leave_lane(id, queued[1])
    count('waited', str(math.max(now - tonumber(queued[2]), 0)))
  end
  return answer('lease', grant(s, id, r, true))
end
if not waits then
  return answer('none', standing(classes, r.domain ~= '' and r.session == ''), str(soonest(classes)))
end
local arrived = tonumber(queued[2] or arg(8))
if queued[1] then
  wake('w' .. id, now + grace)
else
  if arrived == 0 then
    count('waits')
    arrived = now
  end
  enter_lane(id, lane, r.holder, arg(6), arrived)
end
local next_due = call('ZRANGE', DUE, 0, 0, 'WITHSCORES')
return answer('wait', str(arrived), str(math.max(next_due[2] - now, 0)))
