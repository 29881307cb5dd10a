//! How `/v1/templates` is documented.

use serde_json::{Value, json};

use super::{
    ChangeTemplate, CreateTemplate, ListTemplates, ShowTemplate, TemplateAnswer, TemplateArchived, TemplatePage,
    TemplateSaved,
    render::{RenderTemplate, TemplateRendered},
    versions::TemplateVersionPage,
};
use crate::pipeline::{
    Doc, NoFields,
    doc::{AT, ID},
    page::PageQuery,
};

fn summary() -> Value {
    json!({
        "template_id": ID, "name": "Receipt", "template_type": "transactional", "status": "active", "version": 2,
        "subject": "Your receipt, {{ first_name }}", "preheader": null, "variables": ["data.total", "first_name"],
        "created_at": AT, "updated_at": AT,
    })
}

fn example() -> Value {
    let mut template = summary();
    template["body_html"] = json!("<p>You paid {{ data.total }}.</p>");
    template["body_text"] = Value::Null;
    template
}

pub(super) fn list() -> Doc {
    Doc::new("listTemplates", "List templates", "Newest first, without bodies.")
        .query::<ListTemplates>()
        .answer::<TemplatePage>(200, "A page of templates", json!({"templates": [summary()], "next_cursor": null}))
}

pub(super) fn create() -> Doc {
    Doc::new(
        "createTemplate",
        "Create a template",
        "Subject and bodies are Liquid. A syntax error or an unknown merge field is a 400 whose `fields` name part, line and \
         column.",
    )
    .body::<CreateTemplate>(json!({
        "name": "Receipt", "template_type": "transactional", "subject": "Your receipt, {{ first_name }}",
        "body_html": "<p>You paid {{ data.total }}.</p>",
    }))
    .answer::<TemplateSaved>(201, "Created", json!({"template_id": ID, "status": "active", "version": 1}))
    .leads_to(
        "template_id",
        &["getTemplate", "updateTemplate", "archiveTemplate", "renderTemplate", "listTemplateVersions"],
    )
}

pub(super) fn show() -> Doc {
    Doc::new("getTemplate", "Read a template", "With its bodies; with `version`, the content of an earlier one.")
        .query::<ShowTemplate>()
        .answer::<TemplateAnswer>(200, "The template", json!({"template": example()}))
        .refuses(404, &["template_not_found", "template_version_not_found"])
}

pub(super) fn list_versions() -> Doc {
    let example = json!({
        "version": 2, "current": true, "subject": "Your receipt", "preheader": null, "variables": [], "created_at": AT,
    });
    Doc::new("listTemplateVersions", "List a template's versions", "Newest first, without bodies.")
        .query::<PageQuery>()
        .answer::<TemplateVersionPage>(200, "A page of versions", json!({"versions": [example], "next_cursor": null}))
        .refuses(404, &["template_not_found"])
}

pub(super) fn render() -> Doc {
    Doc::new(
        "renderTemplate",
        "Render a template",
        "The mail a recipient would see, without sending it: for a contact, or for a `sample` of one. Links and the unsubscribe \
         address lead to a placeholder. Data that the template cannot be rendered with is a 422 with the reason such a send would \
         fail with.",
    )
    .body::<RenderTemplate>(json!({"sample": {"first_name": "Ann"}, "data": {"total": "12.50"}}))
    .answer::<TemplateRendered>(
        200,
        "Rendered",
        json!({
            "template_id": ID, "version": 2, "subject": "Your receipt, Ann", "html": "<p>You paid 12.50.</p>",
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
    .body::<ChangeTemplate>(json!({"subject": "Your receipt"}))
    .answer::<TemplateSaved>(200, "Changed", json!({"template_id": ID, "status": "active", "version": 3}))
    .refuses(404, &["template_not_found"])
}

pub(super) fn archive() -> Doc {
    Doc::new("archiveTemplate", "Archive a template", "What refers to it keeps its reference; a PATCH brings it back.")
        .body::<NoFields>(json!({}))
        .answer::<TemplateArchived>(200, "Archived", json!({"template_id": ID, "status": "archived"}))
        .refuses(404, &["template_not_found"])
}
