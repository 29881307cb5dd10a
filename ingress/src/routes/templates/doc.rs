//! How `/v1/templates` is documented.

use serde_json::{Value, json};

use super::{STATUSES, TYPES, render::SAMPLE_TEXT_MAX};
use crate::{
    openapi::{
        AT, Doc, ID,
        schema::{
            Field, Schema, any_object, array, boolean, id, integer, line, name, nullable, object, one_of, optional,
            page_of, required, success, text, time, words,
        },
    },
    routes::input::{LINE_MAX, NAME_MAX},
};

/// Longest source of a part; the check counts bytes.
pub(super) const SOURCE_MAX: usize = 512 * 1024;

/// What a list shows of a template: everything but the bodies.
fn common() -> Vec<Field> {
    vec![
        required("template_id", id()),
        required("name", text()),
        required("template_type", one_of(TYPES)),
        required("status", one_of(STATUSES)),
        required("version", version()),
        required("subject", text()),
        required("preheader", text().or_null()),
        required("variables", array(text()).about("The merge fields it uses.")),
        required("created_at", time()),
        required("updated_at", time()),
    ]
}

pub(super) fn version() -> Schema {
    integer(1, i64::from(i32::MAX))
}

fn template() -> Schema {
    let bodies = [required("body_html", text()), required("body_text", text().or_null())];
    object(common().into_iter().chain(bodies)).named("Template")
}

fn listed() -> Value {
    json!({
        "template_id": ID, "name": "Receipt", "template_type": "transactional", "status": "active", "version": 2,
        "subject": "Your receipt, {{ first_name }}", "preheader": null, "variables": ["data.total", "first_name"],
        "created_at": AT, "updated_at": AT,
    })
}

fn example() -> Value {
    let mut template = listed();
    template["body_html"] = json!("<p>You paid {{ data.total }}.</p>");
    template["body_text"] = Value::Null;
    template
}

pub(super) fn list() -> Doc {
    Doc::new("listTemplates", "List templates", "Newest first, without bodies.")
        .query_fields([optional("status", one_of(STATUSES))])
        .paged()
        .answer_schema(
            200,
            "A page of templates",
            page_of("templates", object(common()).named("TemplateSummary")),
            json!({"ok": true, "templates": [listed()], "next_cursor": null}),
        )
}

fn body_part() -> Schema {
    words(SOURCE_MAX)
}

pub(super) fn create() -> Doc {
    Doc::new(
        "createTemplate",
        "Create a template",
        "Subject and bodies are Liquid. A syntax error or an unknown merge field is a 400 whose `fields` name part, line and \
         column.",
    )
  .body_schema(
        object([
            required("name", name(NAME_MAX)),
            required("subject", name(LINE_MAX)),
            required("body_html", body_part()),
            nullable("body_text", text().with("maxLength", SOURCE_MAX)),
            nullable("preheader", line(LINE_MAX)),
            nullable("template_type", one_of(TYPES).about("Default: marketing.")),
            nullable("status", one_of(["draft", "active"]).about("Default: active.")),
        ]),
        json!({
            "name": "Receipt", "template_type": "transactional", "subject": "Your receipt, {{ first_name }}",
            "body_html": "<p>You paid {{ data.total }}.</p>",
        }),
    )
    .answer_schema(
        201,
        "Created",
        success([
            required("template_id", id()),
            required("status", one_of(["draft", "active"])),
            required("version", version()),
        ]),
        json!({"ok": true, "template_id": ID, "status": "active", "version": 1}),
    )
    .leads_to("template_id", &["getTemplate", "updateTemplate", "archiveTemplate", "renderTemplate", "listTemplateVersions"])
}

pub(super) fn show() -> Doc {
    Doc::new("getTemplate", "Read a template", "With its bodies; with `version`, the content of an earlier one.")
        .query_fields([optional("version", version())])
        .answer_schema(
            200,
            "The template",
            success([required("template", template())]),
            json!({"ok": true, "template": example()}),
        )
        .refuses(404, &["template_not_found", "template_version_not_found"])
}

pub(super) fn list_versions() -> Doc {
    let shown = object([
        required("version", version()),
        required("current", boolean()),
        required("subject", text()),
        required("preheader", text().or_null()),
        required("variables", array(text())),
        required("created_at", time()),
    ]);
    let example = json!({
        "version": 2, "current": true, "subject": "Your receipt", "preheader": null, "variables": [], "created_at": AT,
    });
    Doc::new("listTemplateVersions", "List a template's versions", "Newest first, without bodies.")
        .paged()
        .answer_schema(
            200,
            "A page of versions",
            page_of("versions", shown.named("TemplateVersion")),
            json!({"ok": true, "versions": [example], "next_cursor": null}),
        )
        .refuses(404, &["template_not_found"])
}

pub(super) fn render() -> Doc {
    let line = || text().with("maxLength", SAMPLE_TEXT_MAX);
    let sample = object([
        nullable("email", line()),
        nullable("first_name", line()),
        nullable("last_name", line()),
        nullable("title", line()),
        nullable("phone", line()),
        nullable("company", line()),
        nullable("timezone", line()),
        nullable("locale", line()),
        nullable("lifecycle_stage", line()),
        nullable("dot_number", integer(i64::MIN, i64::MAX)),
        nullable("fields", any_object()),
    ]);
    Doc::new(
        "renderTemplate",
        "Render a template",
        "What a recipient would see, sent to nobody: for a contact, or for a `sample` of one. Links and the unsubscribe address \
         lead to a placeholder. Data that the template cannot be rendered with is a 422 with the reason such a send would fail with.",
    )
  .body_schema(
        object([
            nullable("contact_id", id()),
            nullable("sample", sample.about("A contact that need not exist; not together with contact_id.")),
            nullable("data", any_object().about("What the template reads as `data.…`. At most 256 KB, 10,000 values and 16 levels.")),
            nullable("sender_profile_id", id().about("Default: the tenant's default sender.")),
            nullable("version", version().about("Default: the current one.")),
        ]),
        json!({"sample": {"first_name": "Ann"}, "data": {"total": "12.50"}}),
    )
    .answer_schema(
        200,
        "Rendered",
        success([
            required("template_id", id()),
            required("version", version()),
            required("subject", text()),
            required("html", text()),
            required("text", text()),
        ]),
        json!({
            "ok": true, "template_id": ID, "version": 2, "subject": "Your receipt, Ann", "html": "<p>You paid 12.50.</p>",
            "text": "You paid 12.50.",
        }),
    )
    .refuses(404, &["template_not_found", "template_version_not_found", "contact_not_found", "sender_profile_not_found"])
    .refuses(
        422,
        &[
            "render_deadline_exceeded",
            "render_output_too_large",
            "render_filter_failed",
            "render_html_unclosed",
            "render_subject_too_long",
            "render_engine_failed",
        ],
    )
}

pub(super) fn change() -> Doc {
    Doc::new(
        "updateTemplate",
        "Change a template",
        "What is left out stays. Every change of content is a new version; what was launched or sent keeps the one it was made \
         from.",
    )
  .body_schema(
        object([
            optional("name", name(NAME_MAX)),
            optional("subject", name(LINE_MAX)),
            nullable("preheader", line(LINE_MAX)),
            optional("body_html", body_part()),
            nullable("body_text", text().with("maxLength", SOURCE_MAX)),
            optional("status", one_of(STATUSES)),
        ]),
        json!({"subject": "Your receipt"}),
    )
    .answer_schema(
        200,
        "Changed",
        success([
            required("template_id", id()),
            required("status", one_of(STATUSES)),
            required("version", version()),
        ]),
        json!({"ok": true, "template_id": ID, "status": "active", "version": 3}),
    )
    .refuses(404, &["template_not_found"])
}

pub(super) fn archive() -> Doc {
    Doc::new("archiveTemplate", "Archive a template", "What refers to it keeps its reference; a PATCH brings it back.")
        .answer_schema(
            200,
            "Archived",
            success([required("template_id", id()), required("status", one_of(["archived"]))]),
            json!({"ok": true, "template_id": ID, "status": "archived"}),
        )
        .refuses(404, &["template_not_found"])
}
