//! Rows of `snippets` and `snippet_versions`, and what bodies take of them.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};
use sqlx::PgConnection;
use templates::INCLUDES;
use uuid::Uuid;

use super::SnippetView;
use crate::pipeline::error::ApiError;

/// The texts of a snippet or a layout, as their author wrote them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct SnippetTexts {
    pub(crate) body_html: Option<String>,
    pub(crate) mjml: Option<String>,
    pub(crate) body_text: Option<String>,
}

/// What a part takes of a snippet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SnippetText {
    /// HTML.
    Html,
    /// MJML, else HTML, which may stand in its texts.
    Mjml,
    /// Plain text.
    Text,
}

impl SnippetText {
    /// The field in which it is written.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Html => "body_html",
            Self::Mjml => "mjml",
            Self::Text => "body_text",
        }
    }
}

/// A snippet or a layout in its current version.
#[derive(Debug, Clone)]
pub(crate) struct StoredSnippet {
    pub(crate) id: Uuid,
    pub(crate) is_layout: bool,
    pub(crate) name: String,
    pub(crate) version: i32,
    pub(crate) texts: SnippetTexts,
}

impl StoredSnippet {
    /// Its text for a part.
    pub(crate) fn text(&self, wanted: SnippetText) -> Option<&String> {
        match wanted {
            SnippetText::Html => self.texts.body_html.as_ref(),
            SnippetText::Mjml => self.texts.mjml.as_ref().or(self.texts.body_html.as_ref()),
            SnippetText::Text => self.texts.body_text.as_ref(),
        }
    }
}

/// The texts of the snippets for a part, by their names.
pub(crate) fn texts_for(stored: &[StoredSnippet], wanted: SnippetText) -> HashMap<String, Option<String>> {
    let snippets = stored.iter().filter(|snippet| !snippet.is_layout);
    snippets.map(|snippet| (snippet.name.clone(), snippet.text(wanted).cloned())).collect()
}

/// Tells work on these texts with these snippets, in these versions, from other work of the request.
pub(crate) fn label(texts: &[Option<&str>], stored: &[StoredSnippet]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update(text.map_or(u64::MAX, |text| text.len() as u64).to_be_bytes());
        hash.update(text.unwrap_or_default());
    }
    for snippet in stored {
        hash.update(snippet.id.as_bytes());
        hash.update(snippet.version.to_be_bytes());
    }
    hex::encode(hash.finalize())
}

/// The snippets and layouts of these names, and those that they mention, the nearest first, as many as a template may have. They are held
/// against removal until the transaction ends.
pub(crate) async fn load(db: &mut PgConnection, tenant: Uuid, names: &[String]) -> sqlx::Result<Vec<StoredSnippet>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query!(
        // The walk goes no further than its rows are read, which the limit ends, and visits each snippet once.
        r#"with recursive reached (id, version) as (
               select id, version from snippets where tenant_id = $1 and name = any ($2) and deleted_at is null
               union
               select s.id, s.version
               from reached r
               join snippet_versions v on v.tenant_id = $1 and v.snippet_id = r.id and v.version = r.version
               cross join unnest(v.mentions) as mentioned (name)
               join snippets s on s.tenant_id = $1 and s.name = mentioned.name and s.deleted_at is null
           )
           select s.id, s.kind = 'layout' as "is_layout!", s.name, s.version, v.body_html, v.mjml, v.body_text
           from snippets s
           join snippet_versions v on v.tenant_id = $1 and v.snippet_id = s.id and v.version = s.version
           where s.tenant_id = $1 and s.deleted_at is null and s.id in (select id from reached limit $3)
           order by s.name
           for key share of s"#,
        tenant,
        names,
        // Those of both bodies, and the layout. One that is mentioned and not found is unknown to the template: it has too many anyway.
        i64::try_from(2 * INCLUDES + 1).unwrap_or(i64::MAX),
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| StoredSnippet {
            id: row.id,
            is_layout: row.is_layout,
            name: row.name,
            version: row.version,
            texts: SnippetTexts { body_html: row.body_html, mjml: row.mjml, body_text: row.body_text },
        })
        .collect())
}

/// Stores a version, which is then the current one.
pub(super) async fn insert_version(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    version: i32,
    texts: &SnippetTexts,
) -> sqlx::Result<()> {
    sqlx::query!(
        "with current as (
             update snippets set version = $3, updated_at = now() where tenant_id = $1 and id = $2
         )
         insert into snippet_versions (tenant_id, snippet_id, version, body_html, mjml, body_text, mentions)
         values ($1, $2, $3, $4, $5, $6, $7)",
        tenant,
        id,
        version,
        texts.body_html,
        texts.mjml,
        texts.body_text,
        &texts.mentions(),
    )
    .execute(db)
    .await
    .map(drop)
}

/// Holds the snippet until the transaction ends, so that two changes make two versions, and reads it.
///
/// # Errors
/// 404 `snippet_not_found`.
pub(super) async fn lock(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<SnippetView, ApiError> {
    sqlx::query_scalar!(
        "select id from snippets where tenant_id = $1 and id = $2 and deleted_at is null for no key update",
        tenant,
        id
    )
    .fetch_optional(&mut *db)
    .await?;
    get(db, tenant, id).await
}

/// One snippet with its current texts.
///
/// # Errors
/// 404 `snippet_not_found`.
pub(super) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<SnippetView, ApiError> {
    let row = sqlx::query!(
        "select s.kind, s.name, s.version, v.body_html, v.mjml, v.body_text, s.created_at, s.updated_at
         from snippets s
         join snippet_versions v on v.tenant_id = s.tenant_id and v.snippet_id = s.id and v.version = s.version
         where s.tenant_id = $1 and s.id = $2 and s.deleted_at is null",
        tenant,
        id,
    )
    .fetch_optional(db)
    .await?
    .ok_or_else(|| ApiError::not_found("snippet"))?;
    Ok(SnippetView {
        snippet_id: id,
        kind: row.kind,
        name: row.name,
        version: row.version,
        texts: SnippetTexts { body_html: row.body_html, mjml: row.mjml, body_text: row.body_text },
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    })
}
