-- The mails that were delivered (`counted_delivered_at`) to contacts within a time, or contacts that were merged into them (contacts_merged). $1 places, $2 tenants, $3 contacts,
-- $4 since when, $5 until when, $6 and $7 the ids that mail of that time can have, other than a campaign's, $8 and $9 their months. There is
-- no index by contact over all mail: a campaign's is looked up in each campaign that was not over long before (campaigns_by_end,
-- sends_once_per_campaign), all other mail by sends_by_contact. The newest 200 of each.
select w.place as "place!", w.contact_id as "contact_id!", s.id as "send_id!", b.kind as "kind!: MessageKind", s.campaign_id, s.at as "at!",
       s.confirmed as "confirmed!"
from unnest($1::int[], $2::uuid[], $3::uuid[], $4::timestamptz[], $5::timestamptz[], $6::uuid[], $7::uuid[], $8::date[], $9::date[])
    as w (place, tenant_id, contact_id, since, until, first_id, last_id, first_month, last_month)
cross join lateral (
    select d.id, d.campaign_id, d.at, d.confirmed
    from (
        select w.contact_id as id
        union all
        select m.id from contacts m where m.tenant_id = w.tenant_id and m.merged_into = w.contact_id
    ) own
    cross join lateral (
        select s.id, s.campaign_id, s.at, s.confirmed
        from (
            select c.id, c.month from campaigns c
            where c.tenant_id = w.tenant_id and c.launched_at is not null
              -- What is deferred, or confirmed by a provider, may come days after the campaign's end.
              and coalesce(c.completed_at, 'infinity'::timestamptz) >= w.since - interval '4 days' and c.launched_at <= w.until
            offset 0
        ) c
        cross join lateral (
            select s.id, s.campaign_id, counted_delivered_at(s.provider, s.state, s.decided_at, s.delivered_at, s.bounced_at) as at,
                   s.delivered_at is not null as confirmed
            from sends s
            where s.tenant_id = w.tenant_id and s.campaign_id = c.id and s.contact_id = own.id and s.month = c.month
            offset 0
        ) s
        union all
        select s.id, null, counted_delivered_at(s.provider, s.state, s.decided_at, s.delivered_at, s.bounced_at),
               s.delivered_at is not null
        from sends s
        where s.tenant_id = w.tenant_id and s.contact_id = own.id and s.campaign_id is null
          and s.id between w.first_id and w.last_id and s.month between w.first_month and w.last_month
          and not exists (select from messages m where m.tenant_id = s.tenant_id and m.id = s.request_id and m.is_test)
    ) d
    where d.at > w.since and d.at <= w.until
    order by d.at desc, d.id desc limit 200
) s
cross join lateral (
    select b.kind from batches b where b.tenant_id = w.tenant_id and b.id = batch_of(s.id) offset 0
) b
