-- When the ingress looks at a domain's records again by itself. Null: never (the sandbox, a claim given up long ago).
alter table domains add column next_check_at timestamptz default now() + interval '1 hour';

-- A domain's environment is its tenant's, whoever writes the row: a sandbox tenant must never lock a name out of production.
create function domain_takes_its_tenants_environment() returns trigger
language plpgsql
as $$
begin
    select environment into strict new.environment from tenants where id = new.tenant_id;
    if new.environment = 'sandbox' then
        new.next_check_at := null;
    end if;
    return new;
end $$;
create trigger domain_environment before insert on domains
    for each row execute function domain_takes_its_tenants_environment();
update domains d set environment = t.environment,
       next_check_at = case when t.environment = 'production' then d.next_check_at end
from tenants t where t.id = d.tenant_id;
create index domains_to_check on domains (next_check_at) where next_check_at is not null;

-- Takes domains that are due, each for ten minutes: several ingress processes share the work, and one that dies loses none.
-- Looks over the tenants' wall and answers ids only; what is found is recorded inside it.
create function take_domains_to_check(at_most integer) returns table (tenant_id uuid, id uuid)
language sql security definer set search_path from current
as $$
    update domains d set next_check_at = now() + interval '10 minutes'
    from (select e.tenant_id, e.id from domains e
          where e.next_check_at <= now()
          order by e.next_check_at limit at_most for update skip locked) as due
    where d.tenant_id = due.tenant_id and d.id = due.id
    returning d.tenant_id, d.id
$$;
revoke execute on function take_domains_to_check(integer) from public;
grant execute on function take_domains_to_check(integer) to postrider_ingress;
