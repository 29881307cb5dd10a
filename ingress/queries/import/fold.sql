-- Rows that lead to one contact, because others were merged into it: one of them gives the contact its values, that with the contact's own
-- address, else the last of the file, and a bad one (without a status) only where there is no other. An opt-out or `pending` in any of
-- them counts.
with led as (
    select r.number, bool_or(r.unsubscribed) over (partition by r.contact_id) as unsubscribed,
           bool_or(r.pending) over (partition by r.contact_id) as pending,
           row_number() over (partition by r.contact_id order by r.status is null, r.is_merged, r.number desc) as place
    from import_rows r
    where r.contact_id in (select m.contact_id from import_rows m where m.is_merged)
)
update import_rows r set unsubscribed = led.unsubscribed, pending = led.pending, is_folded = led.place > 1
from led where r.number = led.number
