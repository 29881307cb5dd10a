-- Takes late facts and makes the outcomes due that they may affect: outcomes of contacts with a late click, bounce or rescored click,
-- and outcomes that waited for a contact that exists now, by all addresses and numbers that lead to it. Each tenant gets the same share of $1
-- notes, and of about $2 ids: the first notes of all come first. Returns how many notes there were. The tenants are found by jumping from one to
-- the next in the key of late_facts. Served by the keys of contact_facts and contacts, contacts_merged, then outcomes_by_contact,
-- outcomes_by_email and outcomes_by_dot_number, each key once: thousands of contacts may share a number. `offset 0` keeps the planner to
-- these lookups while the tables have no statistics.
with recursive tenant (id) as (
    (select l.tenant_id from late_facts l order by l.tenant_id limit 1)
    union all
    select (select l.tenant_id from late_facts l where l.tenant_id > t.id order by l.tenant_id limit 1)
    from tenant t
    where t.id is not null
), turn as materialized (
    select t.id, greatest($1 / (select count(id) from tenant), 1) as share
    from tenant t
    where t.id is not null
    order by random()
    limit $1
), waiting as materialized (
    select t.id as tenant_id, l.id, l.size, row_number() over (partition by t.id order by l.id) as place
    from turn t
    cross join lateral (
        select l.id, cardinality(l.ids) as size from late_facts l
        where l.tenant_id = t.id
        order by l.id
        limit t.share
        for update skip locked
    ) l
), bounded as materialized (
    select w.tenant_id, w.id, sum(w.size) over (order by w.place, w.id) - w.size as ahead from waiting w
), taken as (
    delete from late_facts l using bounded b
    where l.tenant_id = b.tenant_id and l.id = b.id and b.ahead < $2
    returning l.tenant_id, l.source, l.ids
), named as (
    select distinct t.tenant_id, t.source, n.id from taken t cross join lateral unnest(t.ids) as n (id)
), affected as (
    select n.tenant_id, c.contact_id, n.source
    from named n
    cross join lateral (
        select f.contact_id from contact_facts f
        where n.source in ('events', 'rescored') and f.tenant_id = n.tenant_id and f.send_id = n.id and f.fact in ('clicked', 'bounced')
        union
        select n.id where n.source = 'contacts'
        offset 0
    ) c
), persons as (
    select w.tenant_id, w.contact_id, w.source, c.address, c.dot_number
    from affected w
    cross join lateral (
        select c.address, c.dot_number from contacts c where c.tenant_id = w.tenant_id and c.id = w.contact_id
        union all
        select c.address, c.dot_number from contacts c where c.tenant_id = w.tenant_id and c.merged_into = w.contact_id
        offset 0
    ) c
), due as (
    select p.tenant_id, o.id, p.source
    from (
        select tenant_id, contact_id, min(source) as source from persons where source <> 'contacts' group by tenant_id, contact_id
    ) p
    cross join lateral (
        select o.id from outcomes o where o.tenant_id = p.tenant_id and o.contact_id = p.contact_id
        offset 0
    ) o
    union all
    select p.tenant_id, o.id, p.source
    from (select tenant_id, address, min(source) as source from persons group by tenant_id, address) p
    cross join lateral (
        select o.id from outcomes o
        where o.tenant_id = p.tenant_id and o.contact_email = p.address and o.contact_key is distinct from 'email'
        offset 0
    ) o
    union all
    select p.tenant_id, o.id, p.source
    from (
        select tenant_id, dot_number, min(source) as source from persons where dot_number is not null group by tenant_id, dot_number
    ) p
    cross join lateral (
        select o.id from outcomes o
        where o.tenant_id = p.tenant_id and o.dot_number = p.dot_number and o.contact_key is distinct from 'email'
        offset 0
    ) o
), locked as (
    select o.tenant_id, o.id, d.source
    from (select tenant_id, id, min(source) as source from due group by tenant_id, id) d
    join outcomes o on o.tenant_id = d.tenant_id and o.id = d.id
    order by o.tenant_id, o.id for no key update of o
), marked as (
    update outcomes o
    set credit_due = now(),
        credit_reason = restatement_reason(
            o.credit_reason, case l.source when 'contacts' then 'contact' when 'rescored' then 'rescored' else 'late_fact' end)
    from locked l
    where o.tenant_id = l.tenant_id and o.id = l.id
)
select count(*) as "taken!" from taken
