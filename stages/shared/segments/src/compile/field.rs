//! Tests of a contact's fields.

use super::{
    super::{
        field::{Field, FieldSource, ValueKind},
        rule::{Bound, FieldTest, Scalar, Test},
    },
    Query, push_days_ago,
};

pub(super) fn push_field(query: &mut Query, test: &FieldTest) {
    query.push("(");
    push_test(query, &test.field, &test.test);
    query.push(if test.negated { ") is not true" } else { ")" });
}

fn push_test(query: &mut Query, field: &Field, test: &Test) {
    match test {
        Test::Exists => push_exists(query, field),
        Test::OneOf(values) => push_one_of(query, field, values),
        Test::Contains(text) => {
            query.push("strpos(");
            push_text(query, field);
            query.push(", lower(").push_bind(text.clone()).push(")) > 0");
        }
        Test::StartsWith(text) => {
            query.push("starts_with(");
            push_text(query, field);
            query.push(", lower(").push_bind(text.clone()).push("))");
        }
        Test::EndsWith(text) => {
            query.push("right(");
            push_text(query, field);
            query.push(", length(lower(").push_bind(text.clone());
            query.push("))) = lower(").push_bind(text.clone()).push(")");
        }
        Test::Range(from, to) => push_range(query, field, from.as_ref(), to.as_ref()),
        Test::WithinDays(days) => push_within(query, field, *days),
        Test::OlderThanDays(days) => {
            push_value(query, field);
            query.push(" < ");
            push_now(query, field.kind, -days);
        }
        Test::Includes(text) => {
            query.push("exists (select from jsonb_array_elements_text(");
            push_value(query, field);
            query.push(") item where lower(item) = lower(").push_bind(text.clone()).push("))");
        }
    }
}

fn push_exists(query: &mut Query, field: &Field) {
    push_value(query, field);
    query.push(match field.kind {
        ValueKind::Text | ValueKind::Email => " <> ''",
        ValueKind::TextList => " <> '[]'",
        ValueKind::Word(_) | ValueKind::Number | ValueKind::Boolean | ValueKind::Date | ValueKind::Instant => {
            " is not null"
        }
    });
}

fn push_one_of(query: &mut Query, field: &Field, values: &[Scalar]) {
    if field.kind == ValueKind::Text {
        push_text(query, field);
    } else {
        push_value(query, field);
    }
    for (at, value) in values.iter().enumerate() {
        query.push(if at == 0 { " in (" } else { ", " });
        match (field.kind, value) {
            (ValueKind::Text, Scalar::Text(text)) => {
                query.push("lower(").push_bind(text.clone()).push(")");
            }
            _ => push_scalar(query, value),
        }
    }
    query.push(")");
}

fn push_range(query: &mut Query, field: &Field, from: Option<&Bound>, to: Option<&Bound>) {
    let ends = [(from, " > ", " >= "), (to, " < ", " <= ")];
    let given = ends.into_iter().filter_map(|(bound, strict, inclusive)| Some((bound?, strict, inclusive)));
    for (at, (bound, strict, inclusive)) in given.enumerate() {
        if at > 0 {
            query.push(" and ");
        }
        push_value(query, field);
        query.push(if bound.inclusive { inclusive } else { strict });
        push_scalar(query, &bound.value);
    }
}

/// The last so many days up to now; or from now on, the next.
fn push_within(query: &mut Query, field: &Field, days: i32) {
    let (from, to) = if days > 0 { (-days, 0) } else { (0, -days) };
    push_value(query, field);
    query.push(" between ");
    push_now(query, field.kind, from);
    query.push(" and ");
    push_now(query, field.kind, to);
}

/// The moment, or the UTC day, so many days from now.
fn push_now(query: &mut Query, kind: ValueKind, days: i32) {
    if kind == ValueKind::Date {
        query.push("to_char((now() at time zone 'UTC')::date + ").push_bind(days).push(", 'YYYY-MM-DD')");
    } else {
        push_days_ago(query, -days);
    }
}

fn push_scalar(query: &mut Query, value: &Scalar) {
    match value {
        Scalar::Text(text) | Scalar::Date(text) => query.push_bind(text.clone()),
        Scalar::Number(number) => query.push_bind(number.clone()).push("::numeric"),
        Scalar::Boolean(value) => query.push_bind(*value),
        Scalar::Instant(at) => query.push_bind(*at),
    };
}

/// A text for comparisons without regard to case.
fn push_text(query: &mut Query, field: &Field) {
    // Addresses are in lower case.
    if field.kind == ValueKind::Email {
        return push_value(query, field);
    }
    query.push("lower(");
    push_value(query, field);
    query.push(")");
}

/// A field's value in the type its kind is compared in; null where it is missing, or is not of that kind.
fn push_value(query: &mut Query, field: &Field) {
    let key = match &field.source {
        FieldSource::Column(column) => {
            query.push(format_args!("c.{column}"));
            if field.kind == ValueKind::Number {
                query.push("::numeric");
            }
            return;
        }
        FieldSource::Custom(key) => key,
    };
    match field.kind {
        ValueKind::Text | ValueKind::Email | ValueKind::Word(_) => {
            query.push("(c.fields ->> ").push_bind(key.clone()).push(")");
        }
        // Compared as text, which for this form is the order of days.
        ValueKind::Date => {
            query.push("(c.fields ->> ").push_bind(key.clone()).push(") collate \"C\"");
        }
        ValueKind::Number => push_guarded(query, key, "jsonb_typeof(c.fields -> ", ") = 'number'", "::numeric"),
        ValueKind::Boolean => push_guarded(query, key, "jsonb_typeof(c.fields -> ", ") = 'boolean'", "::boolean"),
        ValueKind::Instant => push_instant(query, key),
        ValueKind::TextList => {
            query.push("(case when jsonb_typeof(c.fields -> ").push_bind(key.clone());
            query.push(") = 'array' then c.fields -> ").push_bind(key.clone()).push(" end)");
        }
    }
}

/// A value that is cast only where the cast cannot fail.
fn push_guarded(query: &mut Query, key: &str, guard: &str, passes: &str, cast: &str) {
    query.push("(case when ").push(guard).push_bind(key.to_owned()).push(passes);
    query.push(" then (c.fields ->> ").push_bind(key.to_owned()).push(")").push(cast).push(" end)");
}

/// A time. RFC 3339, by which values are checked when they are written, allows a year 0 and zones that Postgres does not read, and
/// one contact with such a value must not make the whole segment fail. The two forms that nearly all have are distinguished
/// without the regular expression, which costs more than all the rest.
fn push_instant(query: &mut Query, key: &str) {
    let value = |query: &mut Query| {
        query.push("(c.fields ->> ").push_bind(key.to_owned()).push(")");
    };
    query.push("(case when ");
    value(query);
    query.push(" collate \"C\" < '0001' then null when ");
    value(query);
    query.push(" like any (array['____-__-__T__:__:__Z', '____-__-__T__:__:__.___Z']) or ");
    value(query);
    query.push(INSTANT);
    value(query);
    query.push("::timestamptz end)");
}

const INSTANT: &str = " ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?([Zz]|[+-](0[0-9]|1[0-4]):[0-5][0-9])$' then ";
