-- What decides about each member of an audience, grouped by what is equal: a few hundred rows, however large the audience.
-- The gate decides about each group, in Rust. `eligibility` has the bits of `suppression_bit`. `cap_left` is null where the cap, if there is
-- one, cannot matter: it leaves room, and no more urgent mail is owed.
-- $1 tenant, $2 audiences, $3 campaign, $4 thresholds of its split, or none: then all are one part. $5 true to group by time zones, too.
-- $6 the campaigns whose mail goes first under the cap, $7 their months. $8 when the mail is due, except in the time zones $9: there at $10;
-- and except that of the remainder of a test: at $11, null without one.
-- Parallel hash joins over contacts and members: about 0.7 s for 1,000,000 contacts on two cores, and half as much again where campaigns of
-- $6 owe a million mails, which are found by sends_once_per_campaign in their months. With a remainder it takes half as long again.
with dues as not materialized (
    select c.id, c.address, z.due
    from unnest($9::text[], $10::timestamptz[]) z (timezone, due)
    join contacts c on c.tenant_id = $1 and c.timezone = z.timezone
    union all
    select c.id, c.address, $11::timestamptz
    from contacts c
    where $11::timestamptz is not null and c.tenant_id = $1 and ab_draw($3, c.id) >= ($4::bigint[])[cardinality($4::bigint[])]
), suppressed as (
    select s.address, bit_or(suppression_bit(s.reason, s.scope)) as eligibility
    from suppressions s
    left join dues d on d.address = s.address and s.expires_at is not null
    where s.tenant_id = $1 and is_in_force(s.expires_at, coalesce(d.due, $8::timestamptz))
    group by s.address
), cap as materialized (
    select t.frequency_cap_messages as messages, make_interval(hours => 24 * t.frequency_cap_days) as period
    from tenants t
    where t.id = $1 and t.frequency_cap_messages is not null
), used as (
    select m.contact_id, count(*) as mails
    from capped_sends m
    left join dues d on d.id = m.contact_id
    where m.tenant_id = $1 and m.fenced_at > coalesce(d.due, $8::timestamptz) - (select period from cap)
    group by m.contact_id
), owed as (
    select s.contact_id, count(*) as mails
    from sends s
    -- Not all of the tenant's batches: each mail of its own has one.
    join batches b on b.tenant_id = $1 and b.campaign_id = any ($6) and b.id = batch_of(s.id)
    where exists (select from cap)
      and s.tenant_id = $1 and s.campaign_id = any ($6) and s.month = any ($7) and s.state in ('queued', 'deferred')
      and is_owed_soon(s.state, s.next_attempt_at, b.state, b.announce_after, b.quiet_at)
    group by s.contact_id
)
select coalesce(h.eligibility, 0)
           | case when is_suppressed_by_name(c.address, (select t.environment from tenants t where t.id = $1)) then 16 else 0 end
           as "eligibility!",
       c.marketing_status as "marketing_status!",
       case when cardinality($4::bigint[]) = 0 then 0 else width_bucket(ab_draw($3, c.id), $4) end as "part!",
       case when $5::boolean then c.timezone end as timezone,
       case when o.mails is not null or u.mails >= (select messages from cap)
            then greatest((select messages from cap) - coalesce(u.mails, 0), 0) end as cap_left,
       coalesce(o.mails, 0) as "more_urgent!",
       count(*) as "contacts!",
       bit_xor(uuid_hash_extended(c.id, 0)) as "fingerprint!"
from contacts c
left join suppressed h on h.address = c.address
left join used u on u.contact_id = c.id
left join owed o on o.contact_id = c.id
where c.tenant_id = $1
  and c.status = 'active'
  and c.id in (select m.contact_id from audience_members m where m.tenant_id = $1 and m.audience_id = any ($2))
group by 1, 2, 3, 4, 5, 6
