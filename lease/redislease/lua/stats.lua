-- stats answers the counters, how many wait, and where the endpoints stand.
local waiting = 0
for _, lane in ipairs(call('ZRANGE', base .. 'lanes', 0, -1)) do waiting = waiting + call('ZCARD', base .. 'lane:' .. lane) end
return answer(call('HGETALL', META), waiting, standing(call('HKEYS', base .. 'classes'), false))
