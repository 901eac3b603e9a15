-- stats answers the counters, how many wait, and where the endpoints stand.
local counters = call('HGETALL', META)
for name, n in pairs({ acquired = str(meta.acquired), released = call('GET', base .. 'released') or '0' }) do
  counters[#counters + 1] = 'n:' .. name
  counters[#counters + 1] = n
end
return answer(counters, meta.waiting, standing(call('HKEYS', base .. 'classes'), false))
