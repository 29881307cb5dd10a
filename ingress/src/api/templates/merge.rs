//! The data of previews: contacts as stored, fallbacks, and links without a target.

use std::collections::HashMap;

use serde_json::{Map, Value};
use sqlx::PgConnection;
use templates::{Contact, DataLimits, Links};
use uuid::Uuid;

use crate::pipeline::Faults;

/// Where links lead in a message that is never sent.
const NOWHERE: &str = "https://example.com/";

/// The links of a preview, which lead nowhere.
pub(crate) struct PreviewLinks;

impl Links for PreviewLinks {
    fn click(&self, _: u16, url: &str) -> String {
        url.to_owned()
    }
    fn open_pixel(&self) -> String {
        NOWHERE.to_owned()
    }
    fn unsubscribe(&self) -> String {
        NOWHERE.to_owned()
    }
    fn preferences(&self) -> String {
        NOWHERE.to_owned()
    }
}

/// Adds the fault of merge data that is larger, or nested more deeply, than a rendering takes.
pub(crate) fn check_data(path: &str, data: Option<&Map<String, Value>>, faults: &mut Faults) {
    if let Some(Err(fault)) = data.map(|data| DataLimits::default().check(data)) {
        faults.add(format!("{path}{}", fault.path), fault.code, fault.detail);
    }
}

/// The fields of a contact that templates can use.
pub(crate) struct MergeContact {
    pub(crate) id: Uuid,
    pub(crate) is_active: bool,
    pub(crate) contact: Contact,
}

/// These contacts, by their ids; without the erased ones.
pub(crate) async fn contacts(db: &mut PgConnection, tenant: Uuid, ids: &[Uuid]) -> sqlx::Result<Vec<MergeContact>> {
    let rows = sqlx::query!(
        r#"select id, status = 'active' as "is_active!", address, first_name, last_name, title, phone, company, timezone, locale,
                  lifecycle_stage, dot_number, fields - (select keys from removed_keys($1)) as "fields!"
           from contacts where tenant_id = $1 and id = any ($2) and status <> 'erased' order by id"#,
        tenant,
        ids,
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| MergeContact {
            id: row.id,
            is_active: row.is_active,
            contact: Contact {
                email: row.address,
                first_name: row.first_name,
                last_name: row.last_name,
                title: row.title,
                phone: row.phone,
                company: row.company,
                timezone: row.timezone,
                locale: row.locale,
                lifecycle_stage: row.lifecycle_stage,
                dot_number: row.dot_number.map(|number| number.to_string()),
                fields: row.fields,
            },
        })
        .collect())
}

/// The fallback of a tenant's field that a contact does not have.
pub(crate) async fn fallbacks(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<HashMap<String, String>> {
    let fields = sqlx::query!(
        r#"select key, fallback as "fallback!" from fields where tenant_id = $1 and fallback is not null"#,
        tenant
    )
    .fetch_all(db)
    .await?;
    Ok(fields.into_iter().map(|field| (field.key, field.fallback)).collect())
}
