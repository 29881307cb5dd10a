-- What the planner is to believe of tables that are still empty: few tenants, each with many rows.
--
-- Plans by key are made once and kept (`AccessPattern::ByKey`), in a new installation before there is anything. Without statistics the planner
-- takes the look-up of one contact and the reading of all contacts of its tenant for the same, and keeps to that until the tables are
-- analyzed, a minute later: measured at 140 us of CPU for each of the first mails. So the tables hold a few rows for a moment; truncating
-- them keeps what was learned. In a migration of its own: truncating what the same transaction created would not.
do $$
begin
    if exists (select from tenants) then
        return;
    end if;
    insert into tenants (id, environment, owner_email)
        select md5('tenant ' || i)::uuid, 'sandbox', 'owner@example.com' from generate_series(0, 2) i;
    insert into contents (tenant_id, id, kind, subject, body_html) select id, id, 'transactional', '', '' from tenants;
    insert into domains (tenant_id, id, domain, selector, dkim_private, dkim_public, ownership_token)
        select id, id, id || '.example.com', '', '', '', '' from tenants;
    insert into senders (tenant_id, id, domain_id, email, name) select id, id, id, '', '' from tenants;
    alter table contacts disable trigger user;
    alter table suppressions disable trigger user;
    insert into contacts (tenant_id, id, address)
        select id, gen_random_uuid(), i || '@example.com' from tenants cross join generate_series(1, 100) i;
    insert into suppressions (tenant_id, id, address, reason, scope, source)
        select tenant_id, id, address, 'manual', 'all', 'import' from contacts;
    insert into requests (tenant_id, id, product, environment, kind, payload)
        select tenant_id, id, '', 'sandbox', 'transactional', jsonb_build_object('address', address) from contacts;
    insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, size, queued)
        select tenant_id, id, now(), 'transactional', 'priority', 'transactional', tenant_id, tenant_id, 1, 1 from contacts;
    alter table contacts enable trigger user;
    alter table suppressions enable trigger user;
    -- No list of the most common values: it would say that every real tenant has no rows.
    alter table contacts alter tenant_id set statistics 1;
    alter table suppressions alter tenant_id set statistics 1;
    alter table requests alter tenant_id set statistics 1;
    alter table batches alter tenant_id set statistics 1;
    analyze contacts (tenant_id, id, address), suppressions (tenant_id, id, address), requests (tenant_id, id), batches (tenant_id, id);
    alter table contacts alter tenant_id set statistics -1;
    alter table suppressions alter tenant_id set statistics -1;
    alter table requests alter tenant_id set statistics -1;
    alter table batches alter tenant_id set statistics -1;
    truncate contacts, suppressions, requests, batches cascade;
    delete from senders;
    delete from domains;
    delete from contents;
    delete from tenants;
end;
$$;
