-- The eligibility of each member of an audience, grouped by equal eligibility: at most a few hundred rows, however large the audience.
-- The gate decides about each group, in Rust. `eligibility` has one bit per kind of live suppression, as in the function
-- `recipient_eligibility`.
-- $1 tenant, $2 audiences, $3 campaign, $4 thresholds of its split, or none: then all are one part.
-- Parallel hash joins over contacts and members: about 0.7 s for 1,000,000 contacts on two cores.
with suppressed as (
    select s.address,
           bit_or(case s.reason
                      when 'hard_bounce' then 1
                      when 'complaint' then 2
                      when 'invalid' then case s.scope when 'all' then 4 else 32 end
                      when 'unsubscribe' then 8
                      else case s.scope when 'all' then 16 else 32 end
                  end) as eligibility
    from suppressions s
    where s.tenant_id = $1 and (s.expires_at is null or s.expires_at > now())
    group by s.address
)
select coalesce(h.eligibility, 0)
           | case when is_suppressed_by_name(c.address, (select t.environment from tenants t where t.id = $1)) then 16 else 0 end
           as "eligibility!",
       c.marketing_status as "marketing_status!",
       case when cardinality($4::bigint[]) = 0 then 0 else width_bucket(ab_draw($3, c.id), $4) end as "part!",
       count(*) as "contacts!",
       bit_xor(uuid_hash_extended(c.id, 0)) as "fingerprint!"
from contacts c
left join suppressed h on h.address = c.address
where c.tenant_id = $1
  and c.status = 'active'
  and c.id in (select m.contact_id from audience_members m where m.tenant_id = $1 and m.audience_id = any ($2))
group by 1, 2, 3
