-- stats answers the counters, how many wait, and where the endpoints stand.
return answer(call('HGETALL', META), meta.waiting, standing(call('HKEYS', base .. 'classes'), false))
