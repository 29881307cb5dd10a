//! Erasure of records beside mail: requests, enrollments, outcomes, imports, stored answers, and events of providers.

use runtime::column;
use schemas::messages::ERASED_COPY;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Cursor, Erasure, SLICE, UNINDEXED};

/// Takes back the requests that wait for the contact, and its copies of others', in the transaction of a tenant that empties its row. What they
/// hold is erased in slices. The place of a copy stays: the sends of the others are known by theirs.
pub async fn take_back_requests(db: &mut PgConnection, tenant: Uuid, address: &str) -> sqlx::Result<()> {
    let waiting = sqlx::query_scalar!(
        "select id from requests where tenant_id = $1 and id in (select requests_to($1, array[$2::text])) and state <> 'handled'",
        tenant,
        address,
    )
    .fetch_all(&mut *db)
    .await?;
    reject(&mut *db, tenant, &waiting).await?;
    // Rejected ones as well: no send leads to their copies, `/v1/sends` shows them, and a requeue takes them up again.
    sqlx::query!(
        "update requests set options = without_copy(options, $2, $3)
         where tenant_id = $1 and id in (select requests_copied_to($1, $2)) and options ? 'copies'",
        tenant,
        address,
        ERASED_COPY,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Rejects those of these requests to the contact that are not handled. Handled after this, as a rejected one that is requeued, they would make
/// the contact anew.
async fn reject(db: &mut PgConnection, tenant: Uuid, requests: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!(
        "update requests set state = 'rejected', outcome = 'contact_erased', handled_at = now(), announce_after = null
         where tenant_id = $1 and id = any ($2) and state <> 'handled'
           and (outcome is null or outcome not in ('cancelled', 'contact_erased'))",
        tenant,
        requests,
    )
    .execute(db)
    .await
    .map(drop)
}

impl Erasure {
    /// Requests whose payload holds the address, with their attachments: the payload is emptied, which also removes the request from the
    /// index that finds it. Some of them may wait: they were stored while the contact's row was emptied.
    pub(super) async fn requests(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let requests = sqlx::query_scalar!(
            "select id from requests
             where tenant_id = $1 and kind = 'transactional' and payload ->> 'address' = $2 and received_at <= $3
             limit $4 for update",
            self.tenant_id,
            self.address,
            self.asked_at,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        reject(&mut *db, self.tenant_id, &requests).await?;
        sqlx::query!(
            r#"with attachment as (
                   -- Their trigger deletes the skeleton.
                   delete from message_attachments where tenant_id = $1 and message_id = any ($2)
               )
               update requests set payload = '{"erased": true}', options = null where tenant_id = $1 and id = any ($2)"#,
            self.tenant_id,
            &requests,
        )
        .execute(db)
        .await?;
        Ok(Self::after(&requests, SLICE))
    }

    /// Details that the steps of the contact's enrollments recorded.
    pub(super) async fn enrollments(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let enrollments = sqlx::query_scalar!(
            "select id from enrollments where tenant_id = $1 and contact_id = $2 and id > $3 order by id limit $4",
            self.tenant_id,
            self.contact_id,
            self.cursor_id,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        sqlx::query!(
            "with steps as (
                 update enrollment_steps set detail = '{}' where tenant_id = $1 and enrollment_id = any ($2) and detail <> '{}'
             )
             update enrollments set last_error = null where tenant_id = $1 and id = any ($2) and last_error is not null",
            self.tenant_id,
            &enrollments,
        )
        .execute(db)
        .await?;
        Ok(Self::after(&enrollments, SLICE))
    }

    /// What products reported about the contact is deleted.
    pub(super) async fn product_events(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let erased = sqlx::query_scalar!(
            "delete from product_events where tenant_id = $1 and id in (
                 select id from product_events where tenant_id = $1 and contact_id = $2 limit $3)
             returning id",
            self.tenant_id,
            self.contact_id,
            SLICE,
        )
        .fetch_all(db)
        .await?;
        Ok(Self::after(&erased, SLICE))
    }

    /// Outcomes keep the contact's id and their value; the reported address and number are removed, and the pages that were clicked. An
    /// outcome of the address that was reported after the erasure is another contact's.
    pub(super) async fn outcomes(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let outcomes = sqlx::query_scalar!(
            "select id from outcomes
             where tenant_id = $1 and (contact_id = $2 or contact_email = $3 and created_at <= $4) and id > $5
             order by id limit $6 for no key update",
            self.tenant_id,
            self.contact_id,
            self.address,
            self.asked_at,
            self.cursor_id,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        sqlx::query!(
            "with unclicked as (
                 update outcome_credits set evidence = evidence - 'url'
                 where tenant_id = $1 and outcome_id = any ($2) and contact_id = $3 and evidence ? 'url'
             )
             update outcomes set contact_email = null, dot_number = null where tenant_id = $1 and id = any ($2)",
            self.tenant_id,
            &outcomes,
            self.contact_id,
        )
        .execute(db)
        .await?;
        Ok(Self::after(&outcomes, SLICE))
    }

    /// Reports of imports show the bad cells of rows; one of them may be the address in another form.
    pub(super) async fn imports(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let imports = sqlx::query_scalar!(
            "select id from imports where tenant_id = $1 and id > $2 order by id limit $3",
            self.tenant_id,
            self.cursor_id,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        sqlx::query!(
            r#"update imports set summary = jsonb_set(summary, '{errors}', (
                   select coalesce(jsonb_agg(case
                       when strpos(lower(fault ->> 'value'), $3) > 0 then fault || '{"value": ""}' else fault
                   end order by place), '[]')
                   from jsonb_array_elements(summary -> 'errors') with ordinality as faults (fault, place)
               ))
               where tenant_id = $1 and id = any ($2) and strpos(lower((summary -> 'errors')::text), $3) > 0"#,
            self.tenant_id,
            &imports,
            self.address,
        )
        .execute(db)
        .await?;
        Ok(Self::after(&imports, SLICE))
    }

    /// Stored answers of the contact's tenant that hold its address: a key may serve several tenants. The row stays as a refusal, because a
    /// repeated request must not be executed again. An address of which this one is a part is another one; a line break of JSON before it
    /// and a full stop after it are no parts of it.
    pub(super) async fn answers(&self, db: &mut PgConnection, group: &[&Self]) -> sqlx::Result<Cursor> {
        let row = sqlx::query!(
            r#"with slice as materialized (
                   select key_id, idempotency_key, tenant_id, body from idempotency_keys
                   where (key_id, idempotency_key) > ($1, $2) order by key_id, idempotency_key limit $3
               ), emptied as (
                   update idempotency_keys i
                   set status = 422,
                       body = convert_to('{"ok":false,"error":"contact_erased","detail":"the stored answer named a contact that was erased"}', 'UTF8')
                   from slice l
                   cross join lateral (select lower(encode(l.body, 'escape')) as body offset 0) t
                   where i.key_id = l.key_id and i.idempotency_key = l.idempotency_key and l.tenant_id = any ($4)
                     and exists (
                         select from unnest($4::uuid[], $5::text[], $6::timestamptz[]) as w (tenant_id, address, asked_at)
                         cross join lateral (select encode(convert_to(w.address, 'UTF8'), 'escape') as octets) a
                         where w.tenant_id = l.tenant_id and i.created_at <= w.asked_at
                           and strpos(t.body, a.octets) > 0
                           and t.body ~ ('(^|[^a-z0-9._+-]|\\\\[bfnrt])' || regexp_replace(a.octets, '([^a-z0-9])', '\\\1', 'g')
                                         || '(?!\.?[a-z0-9-])'))
               )
               select key_id, idempotency_key, (select count(*) from slice) as "found!"
               from slice order by key_id desc, idempotency_key desc limit 1"#,
            self.cursor_id,
            self.cursor_text,
            UNINDEXED,
            &column(group, |erasure| erasure.tenant_id),
            &column(group, |erasure| erasure.address.as_str()) as &[&str],
            &column(group, |erasure| erasure.asked_at),
        )
        .fetch_optional(db)
        .await?;
        Ok(row.filter(|row| row.found >= UNINDEXED).map(|row| (row.key_id, row.idempotency_key)))
    }

    /// Raw provider events that were handled, be they JSON or a form. An unhandled one is kept: it may be an opt-out.
    pub(super) async fn inbound_events(&self, db: &mut PgConnection, group: &[&Self]) -> sqlx::Result<Cursor> {
        let spellings: Vec<String> = group.iter().flat_map(|erasure| spellings(&erasure.address)).collect();
        let events = sqlx::query_scalar!(
            "with slice as materialized (
                 select id, raw, due_at from inbound_events where tenant_id = $1 and id > $2 order by id limit $3
             ), emptied as (
                 update inbound_events i set raw = ''
                 from slice l
                 cross join lateral (select lower(encode(l.raw, 'escape')) as raw offset 0) t
                 where i.tenant_id = $1 and i.id = l.id and l.due_at is null
                   and exists (
                       select from unnest($4::text[]) as w (spelling)
                       where strpos(t.raw, encode(convert_to(w.spelling, 'UTF8'), 'escape')) > 0)
             )
             select id from slice order by id",
            self.tenant_id,
            self.cursor_id,
            UNINDEXED,
            &spellings,
        )
        .fetch_all(db)
        .await?;
        Ok(Self::after(&events, UNINDEXED))
    }

    /// Pending facts: details of clients and servers are removed, the fact stays.
    pub(super) async fn pending_facts(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let facts = sqlx::query_scalar!(
            r#"with slice as materialized (
                   select id, reason, send_id, signal from pending_facts where tenant_id = $1 and id > $2 order by id limit $3
               ), emptied as (
                   update pending_facts p
                   set signal = (p.signal - '{ip,user_agent,diagnostic}'::text[])
                       || case when p.signal ? 'url' then '{"url": ""}'::jsonb else '{}' end
                       || '{"ip": null, "user_agent": null}'
                   from slice l
                   where p.tenant_id = $1 and p.id = l.id and p.reason = l.reason and l.signal is not null
                     and exists (select from sends s where s.tenant_id = $1 and s.id = l.send_id and s.contact_id = $4)
               )
               select id from slice order by id"#,
            self.tenant_id,
            self.cursor_id,
            SLICE,
            self.contact_id,
        )
        .fetch_all(db)
        .await?;
        Ok(Self::after(&facts, SLICE))
    }

    /// Bodies of webhooks. The trigger `contacts_erased_events` deletes those that are there when the contact is erased; one that was being
    /// written then is found here. The late steps know the contact alone.
    pub(super) async fn webhook_events(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        sqlx::query!(
            "delete from webhook_events where tenant_id = $1 and erased_with in ($2, md5($3)::uuid)",
            self.tenant_id,
            self.contact_id,
            self.address,
        )
        .execute(db)
        .await?;
        Ok(None)
    }
}

/// How providers write an address, in lower case: its domain in A-labels or U-labels; plain, in a form, or in JSON of ASCII, where some
/// encoders also escape what is special in HTML.
fn spellings(address: &str) -> Vec<String> {
    let with_unicode_domain = schemas::Address::parse(address).map(|address| address.with_unicode_domain());
    let of = |address: String| {
        let in_a_form: String = url::form_urlencoded::byte_serialize(address.as_bytes()).collect();
        [in_a_form.to_ascii_lowercase(), in_ascii_json(&address, ""), in_ascii_json(&address, "&'+"), address]
    };
    let mut all: Vec<String> = [address.to_owned()].into_iter().chain(with_unicode_domain).flat_map(of).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A text in JSON of ASCII, in lower case: these characters are escaped, too.
fn in_ascii_json(text: &str, escaped: &str) -> String {
    let units =
        |c: char| -> String { c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect() };
    text.chars().map(|c| if c.is_ascii() && !escaped.contains(c) { c.to_string() } else { units(c) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("ann@example.com", r#"{"Email": "Ann@Example.com"}"#)]
    #[case("ann@example.com", "recipient=Ann%40example.com&x=1")]
    #[case("ann+b@example.com", r#"{"email":"ann\u002Bb@example.com"}"#)]
    #[case("ann+b@example.com", "recipient=ann%2Bb%40example.com")]
    #[case("jürgen@example.com", r#"{"email":"j\u00FCrgen@example.com"}"#)]
    #[case("ann@xn--bcher-kva.example", r#"{"email":"ann@bücher.example"}"#)]
    #[case("ann@xn--bcher-kva.example", r#"{"email":"ann@b\u00fccher.example"}"#)]
    #[case("ann@xn--bcher-kva.example", "recipient=ann%40b%C3%BCcher.example")]
    fn an_address_is_found_as_providers_write_it(#[case] address: &str, #[case] raw: &str) {
        let (raw, spellings) = (raw.to_lowercase(), spellings(address));
        assert!(spellings.iter().any(|spelling| raw.contains(spelling)), "{raw}: {spellings:?}");
    }

    #[test]
    fn a_plain_address_is_searched_in_two_spellings() {
        assert_eq!(spellings("ann@example.com"), ["ann%40example.com", "ann@example.com"]);
    }
}
