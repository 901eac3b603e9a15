-- What of the files before is used outside of them. It is made once a script.
self = {
  own_face = own_face, behind = behind, ban_of = ban_of, set_ban = set_ban, take_off = take_off, put_on = put_on, wear = wear,
  unlist = unlist, enlist = enlist, match = match, widen = widen, banned = banned,
  leave_lane = leave_lane, enter_lane = enter_lane, bound = bound, bind = bind, offer = offer,
  ring = ring, revoke = revoke, quarantine = quarantine,
}
rare = function() return self end
return self
