-- `standings` as before, written so that the only plan is two look-ups by primary key per contact (`offset 0` keeps the planner
-- from turning them into joins). With statistics missing, as after a first import or launch, the planner would read all
-- contacts of the tenant for each batch: measured at 69 us of CPU per recipient instead of 8.
create or replace function standings(of_tenant uuid, of_contacts uuid[])
returns table (
    contact_id uuid, address text, contact_active boolean, marketing_status text, hard_bounced boolean, complained boolean,
    unsubscribed boolean, invalid boolean, suppressed_all boolean, suppressed_marketing boolean
)
language sql stable parallel safe
as $$
    select c.id, c.address, c.status = 'active', c.marketing_status,
           s.held & 1 <> 0, s.held & 2 <> 0, s.held & 8 <> 0, s.held & 4 <> 0, s.held & 16 <> 0, s.held & 32 <> 0
    from unnest(of_contacts) as w (id)
    cross join lateral (
        select c.id, c.address, c.status, c.marketing_status
        from contacts c
        where c.tenant_id = of_tenant and c.id = w.id
        offset 0
    ) c
    cross join lateral (
        select coalesce(bit_or(case s.reason
                      when 'hard_bounce' then 1
                      when 'complaint' then 2
                      when 'invalid' then 4
                      when 'unsubscribe' then 8
                      else case s.scope when 'all' then 16 else 32 end
                  end), 0) as held
        from suppressions s
        where s.tenant_id = of_tenant and s.address = c.address and (s.expires_at is null or s.expires_at > now())
    ) s
$$;
