-- What became of the rows, and how many of their addresses are under a suppression in force.
select count(*) filter (where contact_id = new_id) as created,
       count(*) filter (where contact_id <> new_id and changed) as updated,
       count(*) filter (where contact_id <> new_id and not changed) as unchanged,
       count(*) filter (where contact_id is null) as skipped,
       count(*) filter (where exists (
           select from suppressions s
           where s.tenant_id = $1 and s.address = r.address and is_in_force(s.expires_at)
       )) as suppressed
from import_rows r
