-- Inserts event bodies that do not exist yet. Returns the new ones.
insert into webhook_events (tenant_id, product, id, erased_with, body, traceparent)
select * from unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::bytea[], $6::text[])
on conflict do nothing
returning product, id
