-- The eligibility of each member of an audience, grouped by equal eligibility: at most a few hundred rows, however large the audience.
-- The gate decides about each group, in Rust. `eligibility` has the bits of `suppression_bit`, and one for the frequency cap.
-- $1 tenant, $2 audiences, $3 campaign, $4 thresholds of its split, or none: then all are one part. $5 true to group by time zones, too.
-- Parallel hash joins over contacts and members: about 0.7 s for 1,000,000 contacts on two cores.
with suppressed as (
    select s.address, bit_or(suppression_bit(s.reason, s.scope)) as eligibility
    from suppressions s
    where s.tenant_id = $1 and (s.expires_at is null or s.expires_at > now())
    group by s.address
), capped as (
    select m.contact_id
    from tenants t
    join capped_sends m on m.tenant_id = t.id and m.fenced_at > now() - make_interval(hours => 24 * t.frequency_cap_days)
    where t.id = $1
    group by m.contact_id, t.frequency_cap_messages
    having count(*) >= t.frequency_cap_messages
)
select coalesce(h.eligibility, 0)
           | case when is_suppressed_by_name(c.address, (select t.environment from tenants t where t.id = $1)) then 16 else 0 end
           | case when f.contact_id is not null then 64 else 0 end
           as "eligibility!",
       c.marketing_status as "marketing_status!",
       case when cardinality($4::bigint[]) = 0 then 0 else width_bucket(ab_draw($3, c.id), $4) end as "part!",
       case when $5::boolean then c.timezone end as timezone,
       count(*) as "contacts!",
       bit_xor(uuid_hash_extended(c.id, 0)) as "fingerprint!"
from contacts c
left join suppressed h on h.address = c.address
left join capped f on f.contact_id = c.id
where c.tenant_id = $1
  and c.status = 'active'
  and c.id in (select m.contact_id from audience_members m where m.tenant_id = $1 and m.audience_id = any ($2))
group by 1, 2, 3, 4
