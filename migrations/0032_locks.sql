-- A new month's partition wants `sends` and `events` for itself: whatever came after would wait behind it for the longest transaction
-- that reads them. It gives up instead; the sweep tries again within the hour, and months are made three ahead.
alter function ensure_partitions(integer) set lock_timeout = '2s';

-- Erasing a person holds the contact's row: the requests that name the address are found by key, not by reading all of the tenant's.
create index requests_by_address on requests (tenant_id, (payload ->> 'address')) where kind = 'transactional';
