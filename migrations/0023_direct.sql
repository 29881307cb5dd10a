-- Large batches of transactional mail wait for their tenant's turn like those of campaigns; they are found by tenant.
create index batches_direct_waiting on batches (tenant_id, id)
    where lane = 'bulk' and state = 'waiting' and campaign_id is null;
