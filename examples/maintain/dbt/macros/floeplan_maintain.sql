{# on-run-end: "{{ floeplan_maintain(results, 'lake') }}" maintains what the run has built in the database lake. #}
{% macro floeplan_maintain(results, database) %}
  {% set tables = [] %}
  {% for one in results if one.status == 'success' and one.node.resource_type in ('model', 'snapshot', 'seed') %}
    {% if one.node.database == database and one.node.config.materialized != 'view' %}
      {% do tables.append(one.node.schema ~ '.' ~ one.node.alias) %}
    {% endif %}
  {% endfor %}
  {% if execute and tables %}
    {% set done = run_query("SELECT floeplan_maintain(" ~ tables ~ ")") %}
    {% do log(done.columns[0].values()[0], info=true) %}
  {% endif %}
{% endmacro %}
