-- acquire: ID, selector, domain, session, holder, ttl, "wait" or "", arrival or 0.
-- The ID is the caller's, and the same ID gets the same answer: a call whose answer
-- was lost is made again. With "wait" it queues, and each later call says that the
-- waiter is still there. It answers "lease", "wait" or "none", or "gone" where leave
-- has overtaken it.
local id, text, waits = arg(1), arg(2), arg(7) == 'wait'
local queued
if call('EXISTS', base .. 'l:' .. id, base .. 'x:' .. id, base .. 'w:' .. id) > 0 then
  local l = lease(id)
  if l then return answer('lease', claim(l)) end
  if call('EXISTS', base .. 'x:' .. id) == 1 then return answer('gone') end
  queued = call('HMGET', base .. 'w:' .. id, 'lane', 'arrived')
end

local r = { domain = arg(3), session = arg(4), holder = arg(5), ttl = tonumber(arg(6)) }
if r.session ~= '' then r.selector = cjson.decode(text) end
local classes, slots = matched(text)
local s, endpoint, egress = pick(r, classes, slots)
if s then
  if queued then
    rare().leave_lane(id, queued[1])
    count('waited', str(math.max(now - tonumber(queued[2]), 0)))
  end
  return answer('lease', grant(s, id, r, true, endpoint, egress))
end
if not waits then
  return answer('none', standing(classes, r.domain ~= '' and r.session == '', slots), str(soonest(classes, slots)))
end
local arrived = tonumber(queued and queued[2] or arg(8))
if queued then
  wake('w' .. id, now + grace)
else
  if arrived == 0 then
    count('waits')
    arrived = now
  end
  rare().enter_lane(id, cjson.encode({ text, arg(3), arg(4) }), r.holder, arg(6), arrived)
end
local next_due = call('ZRANGE', DUE, 0, 0, 'WITHSCORES')
return answer('wait', str(arrived), str(math.max(next_due[2] - now, 0)))
