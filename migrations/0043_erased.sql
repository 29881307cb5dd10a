-- As in 0031, without erased contacts: there is nobody to mail. An archived one is known: mail it has asked for still reaches it.
create or replace function standings(of_tenant uuid, of_contacts uuid[])
returns table (
    contact_id uuid, address text, contact_active boolean, marketing_status text, hard_bounced boolean, complained boolean,
    unsubscribed boolean, invalid boolean, suppressed_all boolean, suppressed_marketing boolean
)
language sql stable parallel safe
as $$
    select c.id, c.address, c.status = 'active', c.marketing_status,
           s.held & 1 <> 0, s.held & 2 <> 0, s.held & 8 <> 0, s.held & 4 <> 0,
           s.held & 16 <> 0 or is_suppressed_by_name(c.address, (select t.environment from tenants t where t.id = of_tenant)),
           s.held & 32 <> 0
    from unnest(of_contacts) as w (id)
    cross join lateral (
        select c.id, c.address, c.status, c.marketing_status
        from contacts c
        where c.tenant_id = of_tenant and c.id = w.id and c.status <> 'erased'
        offset 0
    ) c
    cross join lateral (
        select coalesce(bit_or(case s.reason
                      when 'hard_bounce' then 1
                      when 'complaint' then 2
                      when 'invalid' then case s.scope when 'all' then 4 else 32 end
                      when 'unsubscribe' then 8
                      else case s.scope when 'all' then 16 else 32 end
                  end), 0) as held
        from suppressions s
        where s.tenant_id = of_tenant and s.address = c.address and (s.expires_at is null or s.expires_at > now())
    ) s
$$;
