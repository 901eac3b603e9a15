-- leave: ID, selector, domain, session, "keep" or "". It ends a wait. A lease that
-- was granted meanwhile is claimed with "keep", and given back without. It answers
-- "lease", or "none" as acquire does.
local id, text = arg(1), arg(2)
local l = lease(id)
if l and arg(5) == 'keep' then return answer('lease', claim(l)) end
if l then
  call('INCR', base .. 'released')
  finish(l, nil, true)
end
forget(id, 'gone', '60000') -- a call that is under way may come yet
local queued = call('HMGET', base .. 'w:' .. id, 'lane', 'arrived')
if queued[1] then
  rare().leave_lane(id, queued[1])
  count('canceled')
  count('waited', str(math.max(now - tonumber(queued[2]), 0)))
end
local classes, slots = matched(text)
return answer('none', standing(classes, arg(3) ~= '' and arg(4) == '', slots), str(soonest(classes, slots)))
