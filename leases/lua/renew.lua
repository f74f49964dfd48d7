-- Lets a lease last on, if it is still this holder's under this token.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  holder
-- ARGV[2]  token     decimal string
-- ARGV[3]  ttl_ms    how long the lease lasts from now
--
-- Returns  'renewed' | 'absent' | 'other'
local value = redis.call('GET', KEYS[1])
if not value then return 'absent' end
if value ~= ARGV[1] .. ':' .. ARGV[2] then return 'other' end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 'renewed'
