-- Addresses of the sandbox that are suppressed whatever the table says (API.md §6, magic recipients): one rule for the gate, the count of
-- a launch and explain.
create function is_suppressed_by_name(address text, of_environment text) returns boolean
language sql immutable parallel safe
as $$
    select address like 'suppressed%@sandbox.test' and substr(address, 11, 1) in ('@', '+') and of_environment = 'sandbox'
$$;

-- As in 0021, with the rule above.
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
        where c.tenant_id = of_tenant and c.id = w.id
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
